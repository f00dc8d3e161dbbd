"""Episodes as other tools write them: each module makes one line of one format.

Nothing here reads or writes files. What a format has no place for goes along in it, so that the
importer of the same name gives the same episode back.
"""
