"""The source of an environment: which files and packages a server of it needs elsewhere."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.metadata import Distribution, PackageNotFoundError, packages_distributions
from importlib.metadata import distribution as find_distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ludus.environment.registry import find_environment, registered_environments
from ludus.environment.source_file import SourceFile, recorded_name
from ludus.environment.spec import EnvSpec
from ludus.errors import ConfigError

LUDUS = "ludus-rl"
_METADATA_FILES = ("METADATA", "entry_points.txt")
_IGNORED = ("__pycache__", "*.pyc", ".*")
_SECRET_NAMES = (
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.tfstate"),
    *("*.env", ".env*", ".netrc", "_netrc", ".pypirc", ".npmrc", "auth.json"),
    *("client_secret*.json", "service*account*.json"),
)
_SECRET_STEMS = (
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "gcp*key", "*api_key", "*private_key"),
    *("*credentials", "kubeconfig", "secret", "secrets", "password", "passwords"),
    *("token", "hf_token", "*api_token", "*access_token", "*auth_token"),
)
"""Names without the suffix, of files that have one of these."""
_DATA_SUFFIXES = ("", ".json", ".yaml", ".yml", ".toml", ".ini", ".txt", ".csv")
_BACKUP = re.compile(r"([._](bak|backup|old|orig)|~)$")
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?:\\[nr]|\s)")
"""White space follows, which JSON escapes; in code that looks for keys, none does."""
_KEY_SEARCH_BYTES = 4096


@dataclass(frozen=True)
class EnvSource:
    """An environment that can be served from a copy of its files."""

    env_spec: EnvSpec
    spec: str
    """The spec by which a copy is served."""
    modules: tuple[Path, ...]
    """Folders of packages and single files that are copied, Ludus among them."""
    distributions: tuple[Distribution, ...]
    """Distributions whose metadata are copied, by which the environment is found by name."""
    requirements: tuple[str, ...] = field(default=())

    @property
    def slug(self) -> str:
        """The name in lower-case letters, digits and underscores."""
        return re.sub(r"[^a-z0-9]+", "_", self.env_spec.id.lower()).strip("_")

    @property
    def version(self) -> str:
        return self.distributions[-1].version

    def copy_to(self, folder: Path) -> None:
        """Copy the modules and the metadata; `folder` is then one to be on the import path."""
        folder.mkdir(parents=True)
        files = [(file, module.parent) for module in self.modules for file in _source_files(module)]
        secrets = [str(file.relative_to(top)) for file, top in files if looks_secret(file)]
        if secrets:
            raise ConfigError(
                f"{', '.join(secrets)}: these files look like secrets, and the whole package is "
                "copied. Move them out of it."
            )
        for source, top in files:
            target = folder / source.relative_to(top)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        for each in self.distributions:
            name = each.metadata["Name"].replace("-", "_")
            target = folder / f"{name}-{each.version}.dist-info"
            target.mkdir()
            for file in _METADATA_FILES:
                if (text := each.read_text(file)) is not None:
                    (target / file).write_text(text, encoding="utf-8")


def find_source(spec: str, *, extra_requirements: Iterable[str] = ()) -> EnvSource:
    """Find the files and the pinned requirements of an installed environment, or of one in a file.

    `extra_requirements` are packages that the environment's own metadata do not name.
    """
    env_spec = find_environment(spec)
    point = registered_environments().get(spec.partition(":")[0])
    ludus, ludus_package = find_distribution(LUDUS), _module_path("ludus")
    if point is not None:
        package, owner = _module_path(point.module), point.dist
    else:
        file = SourceFile.parse(spec)
        package = _module_path(file.import_name() if file is not None else spec.partition(":")[0])
        owner = ludus
        if package != ludus_package:
            names = packages_distributions().get(package.stem, [])
            owner = find_distribution(names[0]) if names else None
    modules = {path.name: path for path in (ludus_package, package)}
    if point is None and package.suffix == ".py":
        modules |= {path.name: path for path in _imported_neighbours(package)}
    distributions = {each.metadata["Name"]: each for each in (ludus, owner) if each is not None}
    extras = ["serve"]
    if owner is not None and owner.metadata["Name"] == LUDUS:
        # Those that belong to the environment: its name begins with theirs.
        plain = re.sub(r"[^a-z0-9]", "", env_spec.name.lower())
        declared = ludus.metadata.get_all("Provides-Extra") or []
        extras += [
            each for each in declared if plain.startswith(re.sub(r"[^a-z0-9]", "", each.lower()))
        ]
    names = [name for name in distributions if name != LUDUS]
    requirements = pin_requirements(
        [f"{LUDUS}[{','.join(extras)}]", *names, *extra_requirements], exclude=distributions
    )
    return EnvSource(
        env_spec=env_spec,
        spec=spec if point is not None else recorded_name(spec),
        modules=tuple(modules.values()),
        distributions=tuple(distributions.values()),
        requirements=tuple(requirements),
    )


def looks_secret(file: Path) -> bool:
    """Whether a file is named like a credentials file, or begins with a private key."""
    name = Path(_BACKUP.sub("", file.name.lower().replace("-", "_")))
    stems = _SECRET_STEMS if name.suffix in _DATA_SUFFIXES else ()
    if _matches(name.name, _SECRET_NAMES) or _matches(name.stem, stems):
        return True
    with file.open("rb") as stream:
        # Without the null bytes of UTF-16.
        beginning = stream.read(_KEY_SEARCH_BYTES).replace(b"\0", b"")
    return _PRIVATE_KEY.search(beginning) is not None


def _source_files(module: Path) -> Iterator[Path]:
    """Yield the files of a package, or the file of a single module; hidden ones are left out."""
    if module.is_file():
        yield module
        return
    if not module.is_dir():
        raise ConfigError(f"{module} is not a file, so that it cannot be copied.")
    for path in sorted(module.iterdir()):
        if not _matches(path.name, _IGNORED):
            _refuse_link(path)
            yield from _source_files(path)


def _refuse_link(path: Path) -> None:
    """Raise ConfigError for a link, which may lead to what is not meant to be copied."""
    if path.is_symlink():
        raise ConfigError(
            f"{path} is a link to {path.readlink()}, and links are not copied. Put the file in its "
            "place, or remove the link."
        )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _module_path(module: str) -> Path:
    """The folder of a module's outermost package, or the file of a module without one."""
    parts = module.split(".")
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        raise ConfigError(f"The module {module} is not in a file, so that it cannot be copied.")
    path = Path(file)
    if path.name == "__init__.py":
        path = path.parent
    for _ in parts[1:]:
        path = path.parent
    return path


def _imported_neighbours(file: Path) -> Iterator[Path]:
    """Modules and packages in the folder of a file that have been imported, as the file does."""
    for name, module in tuple(sys.modules.items()):
        source = getattr(module, "__file__", None)
        if "." in name or not source or not Path(source).is_relative_to(file.parent):
            continue
        top = file.parent / Path(source).relative_to(file.parent).parts[0]
        if top.stem == name and top != file:
            _refuse_link(top)
            yield top


_LINUX = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
"""The markers of the machine on which the packages will be installed."""


def pin_requirements(requirements: Iterable[str], *, exclude: Iterable[str] = ()) -> list[str]:
    """Pin these packages and all their dependencies as `name==version`.

    Packages in `exclude` are not listed, but their dependencies are. Raises ConfigError for a
    package that is not installed here.
    """
    excluded = {canonicalize_name(name) for name in exclude}
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    try:
        pending = [Requirement(text) for text in requirements]
    except InvalidRequirement as error:
        raise ConfigError(f"This is not the name of a package: {error}") from None
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                installed = find_distribution(name)
            except PackageNotFoundError:
                raise ConfigError(
                    f"{name} is not installed here, so that its version cannot be pinned. "
                    f"Install it: pip install {name}"
                ) from None
            # A local version, such as 2.9.1+cpu, is not on PyPI.
            versions[name] = installed.version.partition("+")[0]
            for needed in map(Requirement, installed.requires or ()):
                if needed.marker is None or needed.marker.evaluate({**_LINUX, "extra": extra}):
                    pending.append(needed)
    return [f"{name}=={versions[name]}" for name in sorted(versions) if name not in excluded]
