"""The bundled model `tiny-deepseek`: its weights, data, model card and training code."""
