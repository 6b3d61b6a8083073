# SPDX-License-Identifier: Apache-2.0
"""One run: its folders, its machines, what they print, what they ask for, how it ends."""
import os
import selectors
import shlex
import shutil
import sys
import tempfile
import time

from . import machine

GRACE_SECONDS = 20  # for the other machine, after a command failed
TICK = 0.03
# A request's file is obeyed at once but stays for a while: who makes it over 9p still looks at it after it is there.
REQUEST_STAYS = 0.2
PASSED = ('TERN_', 'CONFORMANCE_', 'IBV_', 'RDMAV_', 'PERF_')


class BedFailed(Exception):
    pass


class Output:
    """Lines of one machine, with a prefix if there are two."""

    def __init__(self, prefix):
        self.prefix, self.rest = prefix, b''

    def write(self, data):
        if not self.prefix:
            out = data
        else:
            lines = (self.rest + data).split(b'\n')
            self.rest = lines.pop()
            out = b''.join(self.prefix + line.rstrip(b'\r') + b'\n' for line in lines)
        sys.stdout.buffer.write(out)
        sys.stdout.buffer.flush()

    def end(self):
        if self.rest:
            self.write(b'\n')


class Host:
    def __init__(self, session, name):
        self.session, self.name = session, name
        self.own = '10.77.0.' + ('1' if name == 'a' else '2')
        self.output = Output(f'{name}| '.encode() if session.args.hosts == 2 else b'')
        self.ctl = os.path.join(session.folder, 'ctl-' + name)
        self.boots = 0
        self.killed = False
        self.status = None
        self.machine = None
        os.mkdir(self.ctl)

    def write_command(self):
        args = self.session.args
        env = {k: v for k, v in os.environ.items() if k.startswith(PASSED) and not k.startswith('TERN_VM_')}
        env.update(item.split('=', 1) for item in args.env)
        peer = self.own if args.hosts == 1 else '10.77.0.' + ('2' if self.name == 'a' else '1')
        env.update(VM_HOST=self.name, VM_OWN_ADDR=self.own, VM_PEER_ADDR=peer, VM_SHARED=self.session.shared,
                   VM_NETDEV='eth0', VM_RDMA='rxe0', VM_HOSTS=str(args.hosts), VM_BOOT=str(self.boots),
                   VM_ACCEL=self.session.files.accel, HOME='/tmp', LC_ALL='C.UTF-8',
                   PATH='/run/vm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin')
        lines = ['ulimit -l unlimited', 'ulimit -c 0', 'cd ' + shlex.quote(os.getcwd())]
        lines += [f'export {k}={shlex.quote(v)}' for k, v in sorted(env.items())]
        lines.append('exec ' + shlex.join(args.command))
        with open(os.path.join(self.ctl, 'command'), 'w', encoding='utf-8') as f:
            f.write('\n'.join(lines) + '\n')

    def net(self):
        if self.session.args.hosts == 1:
            return None
        server = 'on' if self.name == 'a' else 'off'
        return f'stream,id=net0,server={server},addr.type=unix,addr.path={self.session.wire}'

    def boot(self):
        args, files = self.session.args, self.session.files
        self.boots += 1
        self.killed, self.status = False, None
        for name in os.listdir(self.ctl):
            os.unlink(os.path.join(self.ctl, name))
            self.session.obeyed.pop(os.path.join(self.ctl, name), None)
        self.write_command()
        self.machine = machine.Machine(
            self.name, self.session.folder, files.kernel, files.initramfs, files.accel, args.memory, args.cpus,
            append=[f'VM_HOST={self.name}', f'VM_HOSTS={args.hosts}', f'VM_ADDR={self.own}',
                    f'VM_SHARED={self.session.shared}', f'VM_TIME={int(time.time())}'],
            exports=[('root', '/', True), ('shared', self.session.shared, False), ('ctl', self.ctl, False)],
            net=self.net(), mac=f'52:54:00:77:00:0{1 if self.name == "a" else 2}')
        self.machine.start()
        os.set_blocking(self.machine.process.stdout.fileno(), False)
        self.session.selector.register(self.machine.process.stdout, selectors.EVENT_READ, self)

    def read(self):
        """Pass on what there is; False at the end."""
        data = self.machine.process.stdout.read(65536)
        if data:
            self.output.write(data)
        return data != b''

    def closed(self):
        """Its output has ended: so has the machine, or will at once."""
        self.session.selector.unregister(self.machine.process.stdout)
        self.output.end()
        self.machine.kill()
        try:
            with open(os.path.join(self.ctl, 'status'), encoding='ascii') as f:
                self.status = int(f.read())
        except (OSError, ValueError):
            self.status = 0 if self.killed else 125
            if not self.killed:
                self.explain()

    def explain(self):
        log = self.machine.log().strip().split('\n')[-25:]
        print(f'vm: {self.name}: ended without a status; {self.machine.errors()}; the end of its log:\n  ' +
              '\n  '.join(log), file=sys.stderr)

    def requests(self):
        """What programs inside ask for: the network card's cable, which no guest can pull itself."""
        for name in ('link-up', 'link-down'):
            if self.session.is_new(os.path.join(self.ctl, name)):
                self.machine.ask('set_link', name='nic0', up=name == 'link-up')


class Session:
    def __init__(self, args, files):
        self.args, self.files = args, files
        self.folder = tempfile.mkdtemp(prefix='tern-test-vm-')
        self.wire = os.path.join(self.folder, 'wire')
        self.shared = os.path.abspath(args.shared or os.path.join(self.folder, 'shared'))
        os.makedirs(self.shared, exist_ok=True)
        self.selector = selectors.DefaultSelector()
        self.hosts = []
        self.obeyed = {}  # path of a request -> when

    def is_new(self, path):
        """Is there a request that was not obeyed yet? Those that were are removed in time."""
        if not os.path.exists(path):
            return False
        now = time.monotonic()
        if path not in self.obeyed:
            self.obeyed[path] = now
            return True
        if now > self.obeyed[path] + REQUEST_STAYS:
            os.unlink(path)
            del self.obeyed[path]
        return False

    def start(self):
        for name in 'ab'[:self.args.hosts]:
            self.hosts.append(Host(self, name))
        for host in self.hosts:
            host.boot()
            end = time.monotonic() + 20
            while host.net() and host.name == 'a' and not os.path.exists(self.wire):
                if not host.machine.alive() or time.monotonic() > end:
                    raise BedFailed('QEMU does not start: ' + host.machine.errors())
                time.sleep(0.02)

    def obey(self):
        """Requests from any machine or from the host: files in the shared folder."""
        for host in self.hosts:
            for verb in ('kill', 'pause', 'resume', 'restart'):
                if not self.is_new(os.path.join(self.shared, f'{verb}-{host.name}')):
                    continue
                if verb in ('kill', 'restart'):
                    host.killed = True
                    host.machine.kill()
                    self.drain(host)
                if verb == 'restart':
                    host.boot()
                elif verb != 'kill' and host.machine.alive():
                    host.machine.ask('stop' if verb == 'pause' else 'cont')
            if host.machine.alive():
                host.requests()

    def drain(self, host):
        if host.machine.process.stdout in [k.fileobj for k in self.selector.get_map().values()]:
            while host.read():
                pass
            host.closed()

    def over(self):
        ended = [h for h in self.hosts if h.status is not None]
        if self.args.until and any(h.name == self.args.until for h in ended):
            return True
        return len(ended) == len(self.hosts)

    def loop(self):
        end = time.monotonic() + self.args.timeout
        failed_at = None
        while not self.over():
            for key, _ in self.selector.select(TICK):
                if not key.data.read():
                    key.data.closed()
            self.obey()
            now = time.monotonic()
            if failed_at is None and any(h.status for h in self.hosts):
                failed_at = now
            if failed_at and now > failed_at + GRACE_SECONDS:
                break
            if now > end:
                print(f'vm: not done after {self.args.timeout:.0f} s', file=sys.stderr)
                return 124
        first = [h for h in self.hosts if h.name == self.args.until] + self.hosts
        return next((h.status for h in first if h.status), 0)

    def close(self):
        for host in self.hosts:
            if host.machine:
                host.machine.kill()
        if self.args.keep_log:
            with open(self.args.keep_log, 'w', encoding='utf-8') as f:
                for host in self.hosts:
                    f.write(''.join(f'{host.name}| {line}\n' for line in host.machine.log().split('\n')))
        self.selector.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def run(args, files):
    session = Session(args, files)
    try:
        session.start()
        return session.loop()
    finally:
        session.close()
