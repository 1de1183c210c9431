"""A plug-in for clipnoise: the method DP-Lion."""
