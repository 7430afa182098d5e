"""Gpus are found by the names that people and drivers use, and vendors' numbers are not confused."""

import subprocess
import sys

import pytest

from quantlab.errors import UnknownNameError
from quantlab.hardware.catalogue import architectures, gpu, products


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("gfx942", "gfx942"),
        ("gfx942:sramecc+:xnack-", "gfx942"),
        ("MI300X", "gfx942"),
        ("AMD Instinct MI300X OAM", "gfx942"),
        ("mi250", "gfx90a"),
        ("AMD Instinct MI300X VF", "gfx942"),
        ("Navi 31 [Radeon RX 7900 XTX]", "gfx1100"),
        ("AMD Instinct MI250X / MI250", "gfx90a"),
        ("MI355X", "gfx950"),
        ("RTX 3090", "sm_86"),
        ("NVIDIA GeForce RTX 3090", "sm_86"),
        ("rtx3090", "sm_86"),
        ("NVIDIA H200", "sm_90"),
        ("H100 80GB HBM3", "sm_90"),
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
        ("Radeon RX 7900 XTX", "gfx1100"),
        ("RX 9070 XT", "gfx1201"),
        ("Strix Halo", "gfx1151"),
        ("Ryzen AI Max+ 395", "gfx1151"),
        ("DGX Spark", "sm_121"),
        ("Apple M4 Max", "apple_m4"),
        ("Arc B580", "xe2_hpg"),
        ("Gaudi 3", "gaudi3"),
        ("cpu", "cpu-x86_64"),
        ("L4", "sm_89"),
        ("T4", "sm_75"),
    ],
)
def test_names_find_their_architecture(name, arch):
    assert gpu(name).arch == arch


def test_an_unknown_name_offers_near_ones():
    with pytest.raises(UnknownNameError) as caught:
        gpu("RTX 3091")
    assert "RTX 3090" in str(caught.value)


def test_the_catalogue_holds_all_architectures_and_products():
    assert len([arch for arch in architectures().values() if arch.vendor != "cpu"]) == 47
    assert len(products()) == 145
    assert {item.arch for item in products()} <= set(architectures())


def test_fp8_is_ocp_or_fnuz_or_neither():
    def fp8(name):
        found = gpu(name)
        return found.dtypes["fp8_e4m3fn"], found.dtypes["fp8_e4m3fnuz"]

    assert fp8("MI300X") == ("converted", "native")
    assert fp8("MI355X") == ("native", "none")
    assert fp8("RX 9070 XT") == ("native", "none")
    assert fp8("MI250") == fp8("RX 7900 XTX") == fp8("RTX 3090") == ("none", "none")
    assert fp8("H100") == ("native", "none")


def test_one_number_never_tells_a_gpu():
    assert gpu("gfx1100").torch_capability == gpu("Thor").torch_capability == (11, 0)
    assert gpu("gfx1100").vendor != gpu("Thor").vendor


def test_figures_are_for_one_device():
    mi250 = gpu("MI250")
    assert (mi250.devices_per_card, mi250.memory_bytes) == (2, 64 * 2**30)
    assert gpu("H200").bandwidth_bytes_per_second == 4.8e12
    assert gpu("Strix Halo").unified_memory


@pytest.mark.parametrize(
    ("name", "gib"),
    [("RTX 3060", 12), ("RTX 3060 8GB", 8), ("Tesla V100-SXM2-16GB", 16), ("NVIDIA A100-SXM4-40GB", 40),
     ("NVIDIA A100-SXM4-80GB", 80), ("RTX 3060 7GB", 12)],
)  # fmt: skip
def test_a_size_in_the_name_picks_the_memory_that_the_product_is_sold_with(name, gib):
    assert gpu(name).memory_bytes == gib * 2**30


def test_every_source_of_the_catalogue_is_known():
    from quantlab.matrix.data import read_section

    known = set(read_section("sources")["sources"])
    cited = {source for item in [*architectures().values(), *products()] for source in item.sources}
    assert cited <= known


def test_looking_up_imports_no_parser_once_cached():
    code = "from quantlab.hardware.catalogue import gpu; gpu('MI300X'); import sys; print('yaml' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
        == "False"
    )
