# SPDX-License-Identifier: Apache-2.0
"""What a machine boots: a Debian kernel with rdma_rxe, a small initramfs made of busybox and modules, and the
accelerator that works here. All of it is cached; nothing is installed."""
import fcntl
import glob
import hashlib
import lzma
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections import namedtuple

from . import machine

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
QEMU = 'qemu-system-x86_64'
MODULES = ('virtio_pci', 'virtio_net', 'virtio_console', 'virtio_rng', '9p', '9pnet_virtio', 'overlay',
           'crc32_generic', 'ib_uverbs', 'rdma_ucm', 'rdma_rxe', 'dummy', 'veth', 'sch_netem')
# Without these a machine is of no use; the others may be parts of another kernel's core or be gone.
NEEDED = ('9p', '9pnet_virtio', 'overlay', 'ib_uverbs', 'rdma_rxe', 'virtio_net', 'virtio_console')
PROBE_SECONDS = 15

Files = namedtuple('Files', 'version origin kernel initramfs accel accel_why')


class CannotWork(Exception):
    pass


def canonical(module):
    return module.replace('-', '_')


# ---- kernel ----

class Kernel:
    """A kernel image and its modules below a root: the machine's own, or an unpacked package."""

    def __init__(self, root, version, origin):
        self.version, self.origin = version, origin
        self.image = os.path.join(root, 'boot/vmlinuz-' + version)
        self.tree = next((t for t in (os.path.join(root, m, 'modules', version) for m in ('lib', 'usr/lib'))
                          if os.path.isdir(t)), None)
        self.paths, self.builtin = {}, set()
        if not self.tree:
            return
        for folder, _, names in os.walk(self.tree):
            for name in names:
                m = re.match(r'(.*)\.ko(\.xz|\.zst|\.gz)?$', name)
                if m:
                    self.paths[canonical(m.group(1))] = os.path.join(folder, name)
        try:
            with open(os.path.join(self.tree, 'modules.builtin'), encoding='ascii') as f:
                self.builtin = {canonical(os.path.basename(line.strip())[:-3]) for line in f}
        except OSError:
            pass

    def usable(self):
        return (bool(self.tree) and os.access(self.image, os.R_OK) and
                all(m in self.paths or m in self.builtin for m in NEEDED))

    def module(self, name):
        path = self.paths[name]
        with open(path, 'rb') as f:
            data = f.read()
        if path.endswith('.xz'):
            return lzma.decompress(data)
        if path.endswith(('.zst', '.gz')):
            tool = 'zstd' if path.endswith('.zst') else 'gzip'
            return subprocess.run([tool, '-dc'], input=data, stdout=subprocess.PIPE, check=True).stdout
        return data

    def load_order(self):
        """[(name, bytes)]: each after what it depends on."""
        order, seen = [], set()

        def visit(name):
            if name in seen or name not in self.paths:
                return
            seen.add(name)
            data = self.module(name)
            m = re.search(rb'\0depends=([^\0]*)\0', data)
            for dep in (m.group(1).decode() if m else '').split(','):
                visit(canonical(dep))
            order.append((name, data))
        for name in MODULES:
            visit(canonical(name))
        return order


def kernels_below(root, origin):
    images = sorted(glob.glob(os.path.join(root, 'boot/vmlinuz-*')), key=os.path.getmtime, reverse=True)
    return [Kernel(root, os.path.basename(i)[len('vmlinuz-'):], origin) for i in images]


def command(*argv, cwd=None):
    p = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, errors='replace', check=False, env=dict(os.environ, LC_ALL='C'))
    if p.returncode != 0:
        last = p.stdout.strip().split('\n')[-1]
        raise CannotWork(f'{" ".join(argv[:3])} failed: {last}')
    return p.stdout


def download(cache):
    """Unpack the kernel package of this release below the cache; it is not installed."""
    if not shutil.which('apt-get') or not shutil.which('dpkg-deb'):
        raise CannotWork('no kernel with rdma_rxe below /boot, and no apt-get to fetch one')
    depends = command('apt-cache', 'depends', 'linux-image-amd64')
    m = re.search(r'Depends: (linux-image-[0-9][^\s<>]*)', depends)
    if not m:
        raise CannotWork('apt knows no linux-image-amd64: run  apt-get update  as root')
    root = os.path.join(cache, 'kernel')
    shutil.rmtree(root, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        os.chmod(folder, 0o755)  # apt may fetch as another user
        command('apt-get', '-q', 'download', m.group(1), cwd=folder)
        package = glob.glob(os.path.join(folder, '*.deb'))[0]
        command('dpkg-deb', '-x', package, os.path.join(folder, 'root'))
        os.rename(os.path.join(folder, 'root'), root)
    return m.group(1)


def find_kernel(cache):
    given = os.environ.get('TERN_VM_KERNEL_ROOT')
    candidates = kernels_below(given, 'TERN_VM_KERNEL_ROOT') if given else []
    candidates += kernels_below('/', 'of this machine') + kernels_below(os.path.join(cache, 'kernel'), 'downloaded')
    for kernel in candidates:
        if kernel.usable():
            return kernel
    package = download(cache)
    for kernel in kernels_below(os.path.join(cache, 'kernel'), 'downloaded'):
        if kernel.usable():
            return kernel
    raise CannotWork(f'the kernel of {package} lacks one of {", ".join(NEEDED)}')


# ---- initramfs ----

class Archive:
    """A cpio archive ("newc"), which is what the kernel unpacks."""

    def __init__(self):
        self.parts, self.inode = [], 0

    def add(self, name, mode, data=b''):
        self.inode += 1
        raw = name.encode() + b'\0'
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        head = b'070701' + b''.join(b'%08x' % f for f in fields) + raw
        self.parts += [head, b'\0' * (-len(head) % 4), data, b'\0' * (-len(data) % 4)]

    def folder(self, name):
        self.add(name, stat.S_IFDIR | 0o755)

    def file(self, name, data, mode=0o755):
        self.add(name, stat.S_IFREG | mode, data)

    def bytes(self):
        self.add('TRAILER!!!', 0)
        return b''.join(self.parts)


def busybox():
    path = shutil.which('busybox', path='/bin:/usr/bin')
    if not path:
        raise CannotWork('no busybox: apt-get install busybox-static')
    with open(path, 'rb') as f:
        data = f.read()
    # A program that needs a loader names it.
    if b'/ld-linux' in data[:4096]:
        raise CannotWork('busybox is not static: apt-get install busybox-static')
    return data


def build_initramfs(kernel):
    a = Archive()
    for folder in ('bin', 'dev', 'proc', 'sys', 'modules', 'lower', 'rw', 'newroot', 'guest'):
        a.folder(folder)
    a.file('bin/busybox', busybox())
    for name in sorted(os.listdir(os.path.join(HERE, 'guest'))):
        with open(os.path.join(HERE, 'guest', name), 'rb') as f:
            a.file('init' if name == 'init' else 'guest/' + name, f.read())
    order = kernel.load_order()
    for name, data in order:
        a.file('modules/' + name, data)
    a.file('modules/order', ''.join(name + '\n' for name, _ in order).encode())
    return a.bytes()


def initramfs(cache, kernel):
    data = build_initramfs(kernel)
    path = os.path.join(cache, f'initramfs-{hashlib.sha256(data).hexdigest()[:16]}')
    if not os.path.exists(path):
        for old in glob.glob(os.path.join(cache, 'initramfs-*')):
            if time.time() - os.path.getmtime(old) > 3600:  # a run that goes on may have it open
                os.unlink(old)
        with open(path + '.new', 'wb') as f:
            f.write(data)
        os.rename(path + '.new', path)
    return path


# ---- accelerator ----

def kvm_works(kernel, path):
    """(works, why). A machine may offer KVM whose guests hang, so a guest is tried."""
    if not os.access('/dev/kvm', os.R_OK | os.W_OK):
        return False, 'no access to /dev/kvm'
    with tempfile.TemporaryDirectory() as folder:
        probe = machine.Machine('probe', folder, kernel, path, 'kvm', memory=256, cpus=1, append=['VM_PROBE=1'])
        probe.start()
        try:
            end = time.monotonic() + PROBE_SECONDS
            while time.monotonic() < end:
                if 'vm-probe works' in probe.log():
                    return True, 'a guest booted under KVM'
                if not probe.alive():
                    return False, 'KVM refuses: ' + (probe.errors().split('\n')[0] or 'no reason given')
                time.sleep(0.1)
        finally:
            probe.kill()
    return False, f'a guest under KVM did not boot in {PROBE_SECONDS} s'


def accelerator(cache, kernel, path):
    """Probed once per boot of this machine and kernel."""
    try:
        with open('/proc/sys/kernel/random/boot_id', encoding='ascii') as f:
            key = f.read().strip() + ' ' + kernel.version
    except OSError:
        key = kernel.version
    note = os.path.join(cache, 'accelerator')
    try:
        with open(note, encoding='utf-8') as f:
            old, accel, why = f.read().split('\n')[:3]
        if old == key:
            return accel, why
    except (OSError, ValueError):
        pass
    works, why = kvm_works(kernel.image, path)
    accel = 'kvm' if works else 'tcg'
    with open(note, 'w', encoding='utf-8') as f:
        f.write(f'{key}\n{accel}\n{why}\n')
    return accel, why


# ---- all ----

def check_qemu():
    if platform.machine() != 'x86_64':
        raise CannotWork(f'the machines are x86-64, this is {platform.machine()}')
    if not shutil.which(QEMU):
        raise CannotWork(f'no {QEMU}: apt-get install qemu-system-x86')
    m = re.search(r'version (\d+)\.(\d+)', command(QEMU, '--version'))
    if not m or (int(m.group(1)), int(m.group(2))) < (7, 2):
        raise CannotWork('QEMU 7.2 or newer is needed')


def prepare(cache, accel=None):
    check_qemu()
    busybox()
    cache = os.path.abspath(cache or os.path.join(HERE, '../../build/vm'))
    os.makedirs(cache, exist_ok=True)
    with open(os.path.join(cache, 'lock'), 'w', encoding='ascii') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kernel = find_kernel(cache)
        path = initramfs(cache, kernel)
        why = 'as asked'
        if not accel:
            accel, why = accelerator(cache, kernel, path)
    return Files(kernel.version, kernel.origin, kernel.image, path, accel, why)
