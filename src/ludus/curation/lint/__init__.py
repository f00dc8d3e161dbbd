"""The look before training: is this data what the student should be trained on?"""
