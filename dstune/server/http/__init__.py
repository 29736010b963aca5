"""Http: OpenAI's routes over the engine's process; torch-free."""
