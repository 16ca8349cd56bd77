"""The admin port: figures, the fallback switch, metrics and health over HTTP. Holds no SQL."""
