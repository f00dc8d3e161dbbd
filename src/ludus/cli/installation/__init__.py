"""Checks of the installation, for `ludus doctor`: packages, programs, the GPU, disks and keys."""
