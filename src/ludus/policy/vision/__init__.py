"""Images for vision-language models: preprocessing, decoding and trainer inputs.

A policy of such a model has a `VisionProcessor`; that of a text-only model has none.
"""
