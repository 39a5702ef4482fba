"""The project's claims, one module each: see bench/README.md."""
