"""doctor finds what is wrong on machines of every kind, from recorded descriptions, and on this one."""

import json
from dataclasses import replace

import pytest

import quantlab
from quantlab.cli import main
from quantlab.errors import UsageError
from quantlab.hardware.diagnosis import doctor
from quantlab.hardware.machine import Device, completed, parse_machine, read_machine, this_machine
from quantlab.hardware.probes import amd_smi_devices, gfx_name

GIB = 2**30


def device(vendor, arch, name, gib, index=0, **more):
    return {"index": index, "vendor": vendor, "arch": arch, "name": name, "memory_bytes": gib * GIB, **more}


CPU = device("cpu", "cpu-x86_64", "EPYC", 64)


def torch_build(version, devices=(), **more):
    return {"version": version, "available": bool(devices), "devices": list(devices), **more}


def machine(*devices, **more):
    return parse_machine(
        {"memory_bytes": 64 * GIB, "shm_bytes": 32 * GIB, "devices": [*devices, CPU], **more}, where="test"
    )


MI300X = device("amd", "gfx942", "AMD Instinct MI300X OAM", 192, features="sramecc+:xnack-")
ROCM = torch_build("2.13.0+rocm7.2", [MI300X], hip="7.2.26015", arch_list=["gfx90a", "gfx942", "gfx950", "gfx1100"])
RTX3090 = device("nvidia", "sm_86", "NVIDIA GeForce RTX 3090", 24)
CUDA = torch_build("2.13.0+cu130", [RTX3090], cuda="13.0")


def rules(found):
    return {finding.rule: finding for finding in found.findings}


def test_a_healthy_mi300x_has_no_findings_and_fp8_works_there():
    found = doctor(
        machine(MI300X, torch=ROCM, drivers={"rocm": "7.2.0"}, packages={"vllm": "0.33.0", "torch": "2.13.0"})
    )
    assert found.ok
    assert found.findings == ()
    (vllm,) = [item for item in found.works if item.engine == "vLLM"]
    assert (vllm.gpu, vllm.version) == ("gfx942", "0.33.0")
    assert "FP8" in vllm.works


@pytest.mark.parametrize(
    ("change", "rule", "words", "fix"),
    [
        ({"unreadable": ["/dev/kfd"]}, "device-access", "/dev/kfd", "usermod -aG render,video"),
        ({"missing": ["/dev/kfd"]}, "device-missing", "/dev/kfd is not here", "--device=/dev/kfd"),
        ({"variables": {"HIP_VISIBLE_DEVICES": "0,4"}}, "index-beyond-devices", "asks for 4", "HIP_VISIBLE_DEVICES=0"),
        ({"shm_bytes": 64 * 2**20}, "small-shm", "64 MiB", "--shm-size"),
        ({"variables": {"HIP_VISIBLE_DEVICES": ""}}, "all-devices-hidden", "HIP_VISIBLE_DEVICES=''", "unset HIP_VIS"),
        ({"variables": {"CUDA_VISIBLE_DEVICES": "-1"}}, "all-devices-hidden", "-1", "unset CUDA_VISIBLE_DEVICES"),
        (
            {"variables": {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}},
            "visible-devices-contradict", "'0' against '1'", "unset CUDA_VISIBLE_DEVICES",
        ),
        (
            {"variables": {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0,1"}},
            "hip-index-outside-rocr", "leaves 1 devices", "unset ROCR_VISIBLE_DEVICES",
        ),
        ({"variables": {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}}, "arch-overridden", "gfx1100", "unset HSA_OVERRIDE"),
        ({"drivers": {"rocm": "6.4.1"}}, "rocm-wheel-and-driver", "6.4.1", "built for ROCm 6"),
        (
            {"torch": torch_build("2.13.0+cu130", cuda="13.0")},
            "wheel-for-another-device", "cuda build", "--torch-backend=auto",
        ),
        ({"torch": torch_build("2.13.0+rocm7.2", hip="7.2")}, "torch-sees-no-device", "sees none", "driver"),
        (
            {"packages": {"gptqmodel": "7.7.0", "llmcompressor": "0.14.0.1"}},
            "conflicting-versions", "2.14.1", 'pip install "gptqmodel>=7.6,<7.7"',
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_rocm_machine_is_found_with_a_fix(change, rule, words, fix):
    healthy = {"torch": ROCM, "drivers": {"rocm": "7.2.0"}}
    found = rules(doctor(machine(MI300X, **{**healthy, **change})))
    assert rule in found, found
    assert words in found[rule].message + found[rule].where
    assert fix in found[rule].fix


def test_a_gpu_newer_than_its_rocm_and_a_wheel_without_its_code():
    gpu = device("amd", "gfx1201", "AMD Radeon RX 9070 XT", 16)
    build = torch_build("2.7.0+rocm6.3", [gpu], hip="6.3.42", arch_list=["gfx90a", "gfx942", "gfx1100"])
    found = rules(doctor(machine(gpu, torch=build, drivers={"rocm": "6.3.3"})))
    assert "known from 6.4.1" in found["rocm-too-old-for-gpu"].message
    assert "not for gfx1201" in found["wheel-lacks-arch"].message


def test_one_mi250_card_is_two_devices():
    cards = [device("amd", "gfx90a", "AMD Instinct MI250", 64, index=index) for index in range(2)]
    found = rules(doctor(machine(*cards, torch=torch_build("2.13.0+rocm7.2", cards, hip="7.2"))))
    assert "2 devices of 64 GB" in found["several-devices-a-card"].message
    assert found["several-devices-a-card"].severity == "info"


def test_mixed_gpus_are_named_and_their_order_warned_of():
    other = device("nvidia", "sm_89", "NVIDIA GeForce RTX 4090", 24, index=1)
    mixed = {"torch": torch_build("2.13.0+cu130", [RTX3090, other], cuda="13.0"), "packages": {"vllm": "0.33.0"}}
    found = doctor(machine(RTX3090, other, **mixed))
    assert {"mixed-gpus", "device-order"} <= set(rules(found))
    assert {item.gpu for item in found.works} == {"sm_86", "sm_89"}
    ordered = doctor(machine(RTX3090, other, **mixed, variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}))
    assert "device-order" not in rules(ordered)


def test_rocm_variables_mean_nothing_on_nvidia():
    found = doctor(machine(RTX3090, torch=CUDA, variables={"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}))
    assert found.findings == ()


@pytest.mark.parametrize(
    ("gpu", "build", "arch"),
    [
        (device("intel", "xe2_hpg", "Intel Arc B580", 12), torch_build("2.13.0+xpu", xpu=True), "xe2_hpg"),
        (device("apple", "apple_m4", "Apple M4 Max", 64), torch_build("2.13.0", mps=True), "apple_m4"),
    ],
)
def test_xpu_and_mps_machines_get_their_own_answers(gpu, build, arch):
    build = {**build, "devices": [gpu], "available": True}
    found = doctor(machine(gpu, torch=build, packages={"transformers": "5.17.0"}))
    assert found.ok
    assert [item.gpu for item in found.works] == [arch]
    assert found.works[0].fails


def test_a_cuda_wheel_on_an_amd_machine_hides_no_other_fault():
    wrong = torch_build("2.13.0+cu130", cuda="13.0")
    variables = {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}
    found = rules(doctor(machine(MI300X, torch=wrong, variables=variables)))
    assert {"wheel-for-another-device", "visible-devices-contradict"} <= set(found)
    assert "torch-sees-no-device" not in found


def test_an_index_beyond_the_devices_is_found_on_nvidia_and_ids_are_left_alone():
    found = rules(doctor(machine(RTX3090, torch=CUDA, variables={"CUDA_VISIBLE_DEVICES": "2"})))
    assert found["index-beyond-devices"].fix == "export CUDA_VISIBLE_DEVICES=0"
    by_id = machine(RTX3090, torch=CUDA, variables={"CUDA_VISIBLE_DEVICES": "GPU-8932f937"})
    assert doctor(by_id).findings == ()


@pytest.mark.parametrize(("driver", "too_old"), [("550.54.15", True), ("580.65.06", False), ("595.10", False)])
def test_a_cuda_wheel_asks_for_its_driver(driver, too_old):
    found = rules(doctor(machine(RTX3090, torch=CUDA, drivers={"nvidia": driver})))
    assert ("cuda-wheel-and-driver" in found) == too_old
    if too_old:
        assert "driver 580 or newer" in found["cuda-wheel-and-driver"].message


def test_torch_names_what_the_kernel_only_numbers():
    dies = [Device(index, "amd", "gfx942", "ip discovery", told_by="kfd") for index in range(2)]
    seen = Device(0, "amd", "gfx942", "AMD Instinct MI300X", features="sramecc+:xnack-", told_by="torch")
    assert [(die.name, die.features) for die in completed(dies, (seen,))] == [
        ("AMD Instinct MI300X", "sramecc+:xnack-")
    ] * 2
    assert completed(dies, ()) == dies
    other = replace(seen, name="AMD Instinct MI325X")
    assert completed(dies, (seen, other)) == dies


def test_amd_smi_of_rocm_6_and_7_is_read_and_another_form_is_not():
    card = {"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "GFX942:sramecc+"},
            "vram": {"size": {"value": 196592, "unit": "MB"}}}  # fmt: skip
    for text in (json.dumps([card]), json.dumps({"gpu_data": [card]})):
        (found,) = amd_smi_devices(text)
        assert (found.arch, found.name, found.memory_bytes) == ("gfx942", "AMD Instinct MI300X", 196592 * 2**20)
    for text in ("", "{}", "[1]", '[{"asic": "x"}]'):
        assert amd_smi_devices(text) == []


def test_kfd_numbers_become_architectures():
    told = [gfx_name(number) for number in (90010, 90402, 90500, 100300, 110000, 110501, 120001)]
    assert told == ["gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201"]


def test_a_recorded_description_stands_in_for_the_machine(tmp_path, capsys):
    file = tmp_path / "mi300x.json"
    described = machine(MI300X, torch=ROCM, drivers={"rocm": "7.2.0"}, packages={"vllm": "0.33.0"})
    file.write_text(json.dumps(described.to_dict()))
    assert read_machine(file) == described
    assert main(["doctor", "--machine", str(file)]) == 0
    text = capsys.readouterr().out
    assert "gfx942 (sramecc+:xnack-)  AMD Instinct MI300X OAM" in text
    assert "vLLM 0.33.0 on gfx942" in text
    assert main(["doctor", "--machine", str(file), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(quantlab.doctor(file).to_dict()))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"devices": 3}', '{"devices": [{"gpu": 1}]}', '{"devices": [], "colour": 1}']
)
def test_a_wrong_description_is_one_clear_error(tmp_path, text):
    file = tmp_path / "machine.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"machine\.json"):
        doctor(file)


def test_this_machine_is_described_and_the_description_reads_back():
    seen = this_machine()
    assert seen.devices[-1].vendor == "cpu"
    assert seen.memory_bytes > GIB
    assert seen.packages["pytest"]
    assert parse_machine(json.loads(json.dumps(seen.to_dict())), where="here") == seen
    if seen.torch is not None:
        assert seen.torch.error is None
        assert seen.torch.version.startswith(seen.packages["torch"].split("+")[0])
