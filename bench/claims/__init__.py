"""What the project claims, a module each: see README.md beside this directory."""
