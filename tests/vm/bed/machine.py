# SPDX-License-Identifier: Apache-2.0
"""One virtual machine: a QEMU process, its log, its control socket. It dies with this process."""
import ctypes
import json
import os
import signal
import socket
import subprocess
import time

QEMU = 'qemu-system-x86_64'
PR_SET_PDEATHSIG = 1
QMP_SECONDS = 30


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Machine:
    """`folder` holds its log and sockets; `exports` are (tag, folder, read only) for 9p."""

    def __init__(self, name, folder, kernel, initramfs, accel, memory, cpus, append=(), exports=(), net=None,
                 mac=None):
        self.name, self.folder = name, folder
        self.process = None
        self.control = None
        self.argv = [
            QEMU, '-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot', '-name', 'tern-vm-' + name,
            '-M', 'pc', '-m', str(memory), '-smp', str(cpus), '-kernel', kernel, '-initrd', initramfs,
            '-append', ' '.join(['console=ttyS0', 'quiet', 'panic=-1', 'mitigations=off', 'random.trust_cpu=on',
                                 'tsc=reliable', *append]),
            '-serial', 'file:' + self.path('log'),
            '-qmp', f'unix:{self.path("qmp")},server=on,wait=off',
            '-device', 'virtio-serial-pci', '-chardev', 'stdio,id=out,signal=off',
            '-device', 'virtserialport,chardev=out,name=out']
        if accel == 'kvm':
            self.argv += ['-accel', 'kvm', '-cpu', 'host']
        else:
            # Kernels that were built for five-level page tables are slower to emulate with them.
            self.argv += ['-accel', 'tcg,thread=multi', '-cpu', 'max,la57=off']
        for tag, path, read_only in exports:
            self.argv += ['-fsdev', f'local,id={tag},path={path.replace(",", ",,")},security_model=none,'
                                    f'multidevs=remap{",readonly=on" if read_only else ""}',
                          '-device', f'virtio-9p-pci,fsdev={tag},mount_tag={tag}']
        if net:
            self.argv += ['-netdev', net, '-device', f'virtio-net-pci,netdev=net0,id=nic0,mac={mac},romfile=']

    def path(self, what):
        return os.path.join(self.folder, f'{self.name}.{what}')

    def start(self):
        with open(self.path('err'), 'wb') as err:
            # Its own session: an interrupt from a terminal is for us, who then end it. The end of its standard
            # input would disconnect the port that the command's output takes.
            self.process = subprocess.Popen(self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
                                            start_new_session=True, preexec_fn=die_with_parent)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        if self.control:
            self.control.close()
            self.control = None

    def text(self, what):
        try:
            with open(self.path(what), encoding='utf-8', errors='replace') as f:
                return f.read()
        except OSError:
            return ''

    def log(self):
        return self.text('log')

    def errors(self):
        return self.text('err').strip()

    # ---- control ----

    def connect(self):
        end = time.monotonic() + QMP_SECONDS
        while True:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(QMP_SECONDS)
            try:
                sock.connect(self.path('qmp'))
                break
            except OSError:
                sock.close()
                if not self.alive() or time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self.control = sock.makefile('rwb')
        sock.close()  # the file keeps it
        self.control.readline()  # greeting
        self.ask('qmp_capabilities')

    def ask(self, command, **arguments):
        """One command of QEMU's control protocol; events in between are not looked at."""
        if not self.control and command != 'qmp_capabilities':
            self.connect()
        message = {'execute': command}
        if arguments:
            message['arguments'] = arguments
        self.control.write(json.dumps(message).encode() + b'\n')
        self.control.flush()
        while True:
            line = self.control.readline()
            if not line:
                raise OSError(f'{self.name}: the machine is gone')
            answer = json.loads(line)
            if 'error' in answer:
                raise OSError(f'{self.name}: {command}: {answer["error"].get("desc")}')
            if 'return' in answer:
                return answer['return']
