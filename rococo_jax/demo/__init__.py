"""The embedded default: drawn scenes with captions and altered captions, in the form of a user's own benchmark."""
