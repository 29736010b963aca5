"""Report: console tables and exports of a finished run."""
