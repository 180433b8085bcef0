"""Names for URLs."""


def slug(title):
    """Return title in lower case with words joined by single dashes."""
    return title.lower().replace(" ", "-")
