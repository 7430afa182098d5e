"""What an evaluation is asked to do: plain frozen values that travel to the worker as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

DEFAULT_TOKENS = 16384
"""Tokens of the text that are measured on, where nobody says otherwise."""

DEFAULT_WINDOW = 2048


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What quality is measured on, and how the text is cut.

    Attributes:
        name: where the text comes from, for people.
        content: the text itself.
        sha256: of the content in UTF-8.
        tokens: tokens to use, from the start; None means all.
        window: tokens in one forward pass; None means ``DEFAULT_WINDOW`` or the model's maximum.
        stride: new tokens of each window; None means the window's length (windows do not overlap).
        batch: windows in one forward pass.
    """

    name: str
    content: str
    sha256: str
    tokens: int | None = DEFAULT_TOKENS
    window: int | None = None
    stride: int | None = None
    batch: int = 1


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """The grid of the speed measurement; an empty axis means that speed is not measured.

    Attributes:
        batch, prompt_tokens, new_tokens: the grid's axes.
        shapes: ``(batch, prompt tokens, new tokens)`` to measure instead of the grid.
        repeats: runs of each cell; ``warmup``: runs before them.
    """

    batch: tuple[int, ...] = (1,)
    prompt_tokens: tuple[int, ...] = (128,)
    new_tokens: tuple[int, ...] = (16,)
    shapes: tuple[tuple[int, int, int], ...] = ()
    repeats: int = 3
    warmup: int = 1

    def cells(self) -> list[tuple[int, int, int]]:
        """Return the shapes to measure."""
        return list(self.shapes) or list(product(self.batch, self.prompt_tokens, self.new_tokens))


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How the engine opens the checkpoint.

    Attributes:
        device: a torch device string, or ``auto``: all gpus of this machine, else the CPU.
        dtype: compute dtype by torch's name; None means what the checkpoint says.
        attention: attention implementation by the engine's name for it; None means the engine's choice.
        use_kernels: let transformers replace layers by kernels of the hub.
        compile: compile the model's forward pass.
        trust_remote_code: run code that comes with the checkpoint.
    """

    device: str = "auto"
    dtype: str | None = None
    attention: str | None = None
    use_kernels: bool = False
    compile: bool = False
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one engine on one checkpoint, in a worker process.

    Attributes:
        checkpoint: folder.
        load: how it is opened.
        text: what quality is measured on; None leaves quality out.
        probe: quantized layers to probe; None means all, 0 none.
        speed: the speed grid.
        baseline: folder of the original, whose weights the decoded file is compared with.
        reference: file of the original's log-probabilities (see ``reference_cache``).
        generate: try to continue some prompts.
        seed: seed of all random inputs.
    """

    checkpoint: str
    load: LoadOptions = field(default_factory=LoadOptions)
    text: TextOptions | None = None
    probe: int | None = None
    speed: SpeedOptions = field(default_factory=SpeedOptions)
    baseline: str | None = None
    reference: str | None = None
    generate: bool = True
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON that ``from_dict`` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Job:
        """Read what ``to_dict`` wrote."""
        fields = dict(content)
        fields["load"] = LoadOptions(**fields["load"])
        fields["text"] = None if fields["text"] is None else TextOptions(**fields["text"])
        speed: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in fields["speed"].items()
        }
        speed["shapes"] = tuple((int(batch), int(prompt), int(new)) for batch, prompt, new in speed["shapes"])
        fields["speed"] = SpeedOptions(**speed)
        return cls(**fields)
