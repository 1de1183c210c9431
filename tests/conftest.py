"""Being here puts this folder on the import path, for what several test folders share."""
