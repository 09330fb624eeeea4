"""The version shown on the page and written into recordings."""

VERSION = "0.1.0"
