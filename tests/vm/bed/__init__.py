# SPDX-License-Identifier: Apache-2.0
"""The test bed's parts: image (kernel, initramfs, accelerator), machine (one QEMU), session (one run)."""
