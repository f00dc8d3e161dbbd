"""Convert episodes to the formats of other tools, one module per format.

Fields that a format has no place for are stored under a key of their own (see
`importers.base`), so that the importer of the same format restores the episode.
"""
