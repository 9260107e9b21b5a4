"""The library of whichever vendor's cards this host has."""

from lensd_collectors.host.amd import NO_LIBRARY, open_amd
from lensd_collectors.host.card import Driver, UnavailableDriverError
from lensd_collectors.host.nvml import open_nvml


def open_gpus() -> Driver:
    """NVIDIA's, else AMD's. Raises UnavailableDriverError; without either it says what is wrong with NVIDIA's."""
    try:
        return open_nvml()
    except UnavailableDriverError as unavailable:
        without = unavailable
    try:
        return open_amd()
    except UnavailableDriverError as unavailable:
        raise (without if unavailable.standing == NO_LIBRARY else unavailable) from None
