"""What a model's weights take: read from the headers of its files, or parameters times the bytes of their type."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from lensd.errors import UsageError

BITS: Final = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
"""Bits a parameter, scales and zero points left out."""
NAMES: Final = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
"""A type as config.json says it -> as it is said here."""
_BY_METHOD: Final = {"awq": 4, "gptq": 4, "fp8": 8, "mxfp4": 4, "nvfp4": 4, "modelopt": 8, "modelopt_fp4": 4, "fbgemm_fp8": 8}
_BITS_KEYS: Final = ("bits", "w_bit", "num_bits", "quant_bits")
MAX_HEADER: Final = 100 * 1024 * 1024
"""The format's own limit on a header."""
MAX_FILES: Final = 4096


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """All weights of a model, over all ranks."""

    total_bytes: int
    source: str
    """`headers`: exact; `parameters`: a product, scales and unquantised parts left out; `given`: as it was said."""
    dtype: str | None = None
    parameters: int | None = None


def from_parameters(parameters: int, dtype: str) -> Weights:
    """Parameters × bits / 8: 7e9 in fp16 are 14 GB, in int4 3.5 GB. A floor for quantised types, whose scales come on top."""
    if dtype not in BITS:
        raise UsageError(f"{dtype!r} is no type of weights: one of {', '.join(BITS)}")
    if not 0 < parameters < 10**15:
        raise UsageError(f"{parameters} is no number of parameters")
    return Weights(total_bytes=math.ceil(parameters * BITS[dtype] / 8), source="parameters", dtype=dtype, parameters=parameters)


def from_headers(directory: Path) -> Weights | None:
    """The weights of the safetensors files there, each tensor counted once; None where there are none.

    The format: a little-endian 64-bit length, then that many bytes of JSON, tensor name → {dtype, shape, data_offsets} (safetensors
    0.8, README, "Format"). Raises UsageError for a file that is not one, as the pointer that a clone without large files leaves.
    """
    files = _files(directory)
    if not files:
        return None
    seen: set[str] = set()
    total = parameters = 0
    types: dict[str, int] = {}
    for path in files:
        for name, tensor in _header(path).items():
            if name == "__metadata__" or name in seen:
                continue
            seen.add(name)
            first, end = _offsets(path, name, tensor)
            total += end - first
            parameters += _elements(tensor)
            types[str(tensor.get("dtype"))] = types.get(str(tensor.get("dtype")), 0) + end - first
    return Weights(total_bytes=total, source="headers", dtype=max(types, key=types.__getitem__, default=None), parameters=parameters)


def stored_dtype(config: Mapping[str, Any], model_dtype: str | None) -> str | None:
    """The type the weights are stored in, by `quantization_config` where there is one; None where neither says."""
    quantised = config.get("quantization_config") or config.get("compression_config")
    if isinstance(quantised, Mapping):
        return _quantised(quantised)
    return NAMES.get(model_dtype or "", None)


def _quantised(config: Mapping[str, Any]) -> str | None:
    method = str(config.get("quant_method") or "").lower()
    if config.get("load_in_4bit"):
        return "int4"
    groups = config.get("config_groups")
    if isinstance(groups, Mapping) and groups:
        kinds = {_of_group(group) for group in groups.values()}
        return kinds.pop() if len(kinds) == 1 else None
    named = next((config[key] for key in _BITS_KEYS if isinstance(config.get(key), int)), None)
    bits = 8 if config.get("load_in_8bit") else named or _BY_METHOD.get(str(config.get("quant_algo")).lower()) or _BY_METHOD.get(method)
    if bits == 8:
        return "fp8" if "fp8" in method else "int8"
    return "int4" if bits == 4 else None


def _of_group(group: object) -> str | None:
    """Of one group of layers as compressed-tensors describes it (its QuantizationArgs: num_bits, type int or float)."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    match weights.get("num_bits"), weights.get("type"):
        case 8, "float":
            return "fp8"
        case 8, _:
            return "int8"
        case 4, _:
            return "int4"
        case _:
            return None


def _files(directory: Path) -> list[Path]:
    """Those of the index, else the one file, else all but a second copy of the same weights."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = json.loads(index.read_text())["weight_map"].values()
            files = [directory / name for name in sorted(set(named))]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UsageError(f"{index} is no index of weights: fetch it, or give --parameters") from None
        missing = next((path for path in files if not path.is_file()), None)
        if missing is not None:
            raise UsageError(f"{missing} is named in the index and is not there: fetch it, or give --parameters")
        return files[:MAX_FILES]
    one = directory / "model.safetensors"
    if one.is_file():
        return [one]
    found = [path for path in directory.glob("*.safetensors") if not path.name.startswith("consolidated")]
    return sorted(found or directory.glob("consolidated*.safetensors"))[:MAX_FILES]


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if start.startswith(b"version "):
                raise UsageError(f"{path} is a pointer to weights that were not fetched: fetch them, or give --parameters")
            if not 2 <= length <= MAX_HEADER:
                raise UsageError(f"{path} is no safetensors file")
            header = json.loads(file.read(length))
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or type(error).__name__).lower()}; or give --parameters") from None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise UsageError(f"{path} is no safetensors file")
    return header


def _elements(tensor: Mapping[str, Any]) -> int:
    shape = tensor.get("shape")
    return math.prod(shape) if isinstance(shape, list) and all(isinstance(edge, int) for edge in shape) else 0


def _offsets(path: Path, name: str, tensor: object) -> tuple[int, int]:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(at, int) for at in offsets) and 0 <= offsets[0] <= offsets[1]:
        return offsets[0], offsets[1]
    raise UsageError(f"{path} gives no place to tensor {name[:60]!r}")
