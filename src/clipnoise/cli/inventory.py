"""What there is to run: datasets, pretrained weights and methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from clipnoise.cli import options

if TYPE_CHECKING:
    from clipnoise.data.base import Dataset
    from clipnoise.data.remote import RawFiles

Name = Annotated[str, options.ARGUMENT]
Markdown = Annotated[Path | None, "Write the documentation page to this file."]
Options = Annotated[str, "What decides the prepared form, as JSON or YAML: {tokenizer: …}."]


@click.group(cls=options.CommandGroup)
def data() -> None:
    """Fetch, verify and prepare datasets, or list them."""


@options.command(data, name="list")
def list_datasets(cache: options.Cache = options.CACHE, markdown: Markdown = None) -> None:
    """Show every dataset: what of it is here, its sizes, licence and source."""
    from clipnoise.data.base import Dataset
    from clipnoise.data.page import dataset_page
    from clipnoise.files import write_atomically
    from clipnoise.plugins import plugins

    if markdown is not None:
        write_atomically(markdown, dataset_page())
        print(markdown)
        return
    known = plugins("clipnoise.data", Dataset)
    width = max(map(len, known)) + 2
    for identifier, kind in known.items():
        dataset = kind()
        sizes = ", ".join(f"{split} {n:,}" for split, n in dataset.sizes().items() if n)
        state = _state(cache, dataset)
        print(f"{identifier:<{width}}{state:<22}{dataset.title}: {sizes}")
        print(f"{'':<{width + 22}}licence: {dataset.licence}; source: {dataset.source}")


def _state(cache: Path, dataset: Dataset) -> str:
    """Return what of a dataset is here: a prepared form, its raw files only, or nothing."""
    from clipnoise.data.cache import MANIFEST

    forms = [cache / dataset.prepared, *cache.glob(f"{dataset.id}@*")]
    if any((folder / MANIFEST).is_file() for folder in forms):
        return "present"
    if not dataset.files or dataset.raw_files(cache).missing():
        return "absent"
    return "absent, raw files here"


@options.command(data, name="fetch")
def fetch_dataset(name: Name, cache: options.Cache = options.CACHE) -> None:
    """Download the raw files of dataset NAME, or say how to get them by hand."""
    dataset = _dataset(name)
    if dataset.files:
        print(f"{dataset.id}: fetched into {_download(dataset.raw_files(cache))}")
    else:
        print(f"{dataset.id}: nothing to fetch. {dataset.manual}".rstrip())


@options.command(data, name="verify")
def verify_dataset(
    name: Name, options: Options = "{}", cache: options.Cache = options.CACHE
) -> None:
    """Compare the raw files of dataset NAME with their checksums, and its prepared files, too."""
    from clipnoise.data.cache import MANIFEST, read_arrays

    dataset = _dataset(name, options)
    for file, raw in dataset.raw_files(cache).verify().items():
        print(f"{file}: sha256 {raw.sha256}, checked against {raw.checked}")
    folder = cache / dataset.prepared
    if (folder / MANIFEST).is_file():
        for array in read_arrays(folder, dataset.id):
            print(f"{folder / array}.npy: as it was prepared")


@options.command(data, name="prepare")
def prepare_dataset(
    name: Name,
    options: Options = "{}",
    unverified: Annotated[bool, "Accept the raw files as they are from now on."] = False,
    weights: options.Weights = options.WEIGHTS,
    cache: options.Cache = options.CACHE,
) -> None:
    """Write dataset NAME into the cache, from its raw files."""
    from clipnoise.data.text import Tokenising

    dataset = _dataset(name, options)
    if unverified:
        dataset.raw_files(cache).accept()
    elif dataset.files:
        dataset.raw_files(cache).verify()
    if isinstance(dataset, Tokenising):
        dataset.prepare(cache, weights)
    else:
        dataset.prepare(cache)
    print(f"{dataset.id}: prepared in {cache / dataset.prepared}")


def _dataset(name: str, options: str = "{}") -> Dataset:
    import yaml

    from clipnoise.data.base import dataset_class
    from clipnoise.fields import parse

    return parse(dataset_class(name), yaml.safe_load(options), file="--options")


@click.group(cls=options.CommandGroup)
def weights() -> None:
    """Fetch, verify or list the pretrained weights and tokenizers that models start from."""


@options.command(weights, name="list")
def list_weights(weights: options.Weights = options.WEIGHTS) -> None:
    """Show all weights: whether they are here, their licence and source."""
    from clipnoise.models.base import model_class
    from clipnoise.models.pretrained import pretrained_weights, weight_files

    for model, source in pretrained_weights().items():
        missing = weight_files(weights, model).missing()
        state = f"absent: {', '.join(missing)}" if missing else "present"
        print(f"{model:<14}{state}")
        title = model_class(model).title
        print(f"{'':<14}{title}, licence {source.licence}, {source.source}")


@options.command(weights, name="fetch")
def fetch_weights(name: Name, weights: options.Weights = options.WEIGHTS) -> None:
    """Download the weights of model NAME, or say how to get them by hand."""
    from clipnoise.models.pretrained import weight_files

    print(f"{name}: fetched into {_download(weight_files(weights, name))}")


@options.command(weights, name="verify")
def verify_weights(name: Name, weights: options.Weights = options.WEIGHTS) -> None:
    """Compare the weights of model NAME with their checksums."""
    from clipnoise.models.pretrained import weight_files

    for file, raw in weight_files(weights, name).verify().items():
        print(f"{file}: sha256 {raw.sha256}, checked against {raw.checked}")


@options.command(weights, name="accept")
def accept_weights(name: Name, weights: options.Weights = options.WEIGHTS) -> None:
    """Accept the weights of model NAME as they are from now on, e.g. another version of them."""
    from clipnoise.models.pretrained import weight_files

    files = weight_files(weights, name)
    files.accept()
    print(f"{name}: the files in {files.folder} are accepted as they are")


def _download(files: RawFiles) -> Path:
    """Download files into their folder, with a progress bar for each on standard error.

    Raises:
        UserError: a file cannot be downloaded; the message says how to get it by hand.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as progress:
        bars = {file.name: progress.add_task(file.name, total=None) for file in files.files}

        def report(name: str, done: int, total: int | None) -> None:
            progress.update(bars[name], completed=done, total=total)

        return files.fetch(report)


@options.command()
def methods(markdown: Markdown = None) -> None:
    """List the methods: family, privacy, sensitivity, passes per step, needs and source.

    With --markdown, write the page of the documentation instead, with formulas.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from clipnoise.files import write_atomically
    from clipnoise.methods.catalogue import catalogue, method_page

    if markdown is not None:
        write_atomically(markdown, method_page())
        print(markdown)
        return
    columns = ("name", "family", "privacy", "adjacency", "sensitivity", "passes", "needs", "source")
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for entry in catalogue():
        table.add_row(*(str(getattr(entry, column)) for column in columns))
    console = Console()
    Console(width=None if console.is_terminal else 220).print(table)
