"""Images for vision-language models: preprocessing, decoding and trainer inputs."""
