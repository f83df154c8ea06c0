"""The version, alone in its file so that building the package imports nothing."""

VERSION = "0.1.0"
