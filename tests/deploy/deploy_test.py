#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/ against what it speaks of: manifests and chart say the same, with options that `tern` has; rules and dashboard use
metrics that a server gives; promtool accepts the rules.

Usage: deploy_test.py ROOT TERN
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

import yaml

ROOT, TERN = sys.argv[1:3]
DEPLOY = os.path.join(ROOT, 'deploy')
EXPRESSION = re.compile(r'\{\{-?\s*(.*?)\s*-?\}\}')


def read(path):
    with open(os.path.join(DEPLOY, path), encoding='utf-8') as file:
        return file.read()


def render(template, values, release):
    """What the chart's templates use of Helm: values, if and end, add, quote."""
    def value(words):
        if words == '.Release.Name':
            return release
        if words.startswith('.Values.'):
            found = values
            for key in words[len('.Values.'):].split('.'):
                found = found[key]
            return found
        return int(words)

    def evaluate(words):
        if words.endswith('| quote'):
            return json.dumps(str(value(words[:-len('| quote')].strip())))
        if words.startswith('add '):
            return str(sum(value(part) for part in words.split()[1:]))
        return str(value(words))

    out, shown = [], [True]
    template = re.sub(r'\n[ \t]*\{\{-', '\n{{-', template)  # "{{-" takes the white space before it
    for line in template.split('\n'):
        whole = re.fullmatch(r'\{\{-\s*(.*?)\s*\}\}', line)
        if whole:
            if whole.group(1).startswith('if '):
                shown.append(bool(value(whole.group(1)[3:])))
            elif whole.group(1) == 'end':
                shown.pop()
            else:
                raise ValueError(line)
            continue
        line = re.sub(r'\{\{ if (\S+) \}\}(.*?)\{\{ end \}\}', lambda m: m.group(2) if value(m.group(1)) else '', line)
        if all(shown):
            out.append(EXPRESSION.sub(lambda m: evaluate(m.group(1)), line))
    assert shown == [True], 'an if without end'
    return '\n'.join(out)


def documents(text):
    return [d for d in yaml.safe_load_all(text) if d]


class Manifests(unittest.TestCase):
    def values(self, **more):
        values = yaml.safe_load(read('helm/tern/values.yaml'))
        for key, new in more.items():
            values[key] = dict(values[key], **new) if isinstance(new, dict) else new
        return values

    def chart(self, name, release='tern', **more):
        return documents(render(read(f'helm/tern/templates/{name}.yaml'), self.values(**more), release))

    def test_chart_is_the_manifests(self):
        plain = documents(read('kubernetes/servers.yaml'))
        plain[1]['spec']['template']['spec']['containers'][0]['resources']['requests']['cpu'] = 2
        self.assertEqual(self.chart('servers'), plain)
        plain = documents(read('kubernetes/job.yaml').replace('train-0.train', 'tern-job-0.tern-job')
                          .replace(': train', ': tern-job'))
        self.assertEqual(self.chart('job', job={'ranks': 4}), plain)
        self.assertEqual(self.chart('job'), [])

    def test_values_are_used(self):
        servers = self.chart('servers', release='x', etcd='http://etcd:2379', budget='4GiB', drain=7)
        text = servers[1]['spec']['template']['spec']['containers'][0]['args'][0]
        self.assertIn('first=etcd:http://etcd:2379/x\n', text)
        self.assertIn('--budget 4GiB', text)
        self.assertIn('--drain 7s', text)
        self.assertEqual(servers[1]['spec']['template']['spec']['terminationGracePeriodSeconds'], 37)
        used = set(re.findall(r'\.Values\.([\w.]+)', read('helm/tern/templates/servers.yaml') + read('helm/tern/templates/job.yaml')))
        there = {f'{k}.{n}' if isinstance(v, dict) else k for k, v in self.values().items()
                 for n in (v if isinstance(v, dict) else [''])}
        self.assertEqual(used, there)
        self.assertEqual(yaml.safe_load(read('helm/tern/Chart.yaml'))['appVersion'],
                         subprocess.run([TERN, '--version'], capture_output=True, text=True, check=True).stdout.split()[1])

    def test_selectors_and_volumes(self):
        for text in (read('kubernetes/servers.yaml'), read('kubernetes/job.yaml')):
            service, work = documents(text)
            pod = work['spec']['template']['spec']
            self.assertEqual(service['kind'], 'Service')
            self.assertEqual({v['name'] for v in pod['volumes']}, {m['name'] for m in pod['containers'][0]['volumeMounts']})
            for entry in pod['containers'][0]['env']:
                self.assertTrue('value' in entry or 'valueFrom' in entry)
        servers = documents(read('kubernetes/servers.yaml'))
        self.assertEqual(servers[0]['spec']['selector'], servers[1]['spec']['selector']['matchLabels'])
        self.assertEqual(servers[1]['spec']['template']['metadata']['labels'], servers[0]['spec']['selector'])

    def test_options_exist(self):
        text = documents(read('kubernetes/servers.yaml'))[1]['spec']['template']['spec']['containers'][0]['args'][0]
        given = set(re.findall(r'(--[a-z-]+)', text))
        there = set(re.findall(r'^  (--[a-z-]+)', subprocess.run([TERN, 'server', '--help'], capture_output=True, text=True,
                                                                 check=True).stdout, re.M))
        self.assertGreater(len(given), 6)
        self.assertEqual(given - there, set())
        # the shell of the pod accepts it, and it runs here with other addresses
        script = text.replace('exec tern', f'exec {TERN}')
        env = dict(os.environ, POD_NAME='tern-servers-0', POD_IP='127.0.0.1')
        script = script.replace(':7000"', ':0"').replace(':9400"', ':0"').replace('--first 2', '--first 1')
        process = subprocess.Popen(['/bin/sh', '-c', script], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertRegex(process.stdout.readline(), r'^127\.0\.0\.1:\d+$')
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=90)
        self.assertEqual(process.returncode, 0)


class Metrics(unittest.TestCase):
    def given(self):
        """Names that a server at work gives."""
        server = subprocess.Popen([TERN, 'server', '--http', '127.0.0.1:0', '--json'], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        load = None
        try:
            facts = json.loads(server.stdout.readline())
            load = subprocess.Popen([TERN, 'bench', 'ps', '--servers', facts['address'], '--duration', '60', '--quiet',
                                     '--keys', '1000'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(100):
                with urllib.request.urlopen(f'http://{facts["http"]}/metrics', timeout=10) as answer:
                    names = set(re.findall(r'^(\w+)[{ ]', answer.read().decode(), re.M))
                if 'tern_peer_up' in names and 'tern_latency_seconds_bucket' in names and 'tern_table_rows' in names:
                    return names
                time.sleep(0.1)
            self.fail(f'no load at the server: {sorted(names)}')
        finally:
            if load:
                load.kill()
                load.wait()
            server.terminate()
            server.communicate(timeout=30)
        return None

    def test_are_there(self):
        dashboard = json.loads(read('grafana/tern.json'))
        expressions = [t['expr'] for p in dashboard['panels'] for t in p['targets']]
        expressions += [v['query'] for v in dashboard['templating']['list'] if v['type'] == 'query']
        rules = yaml.safe_load(read('prometheus/tern.rules.yml'))['groups'][0]['rules']
        expressions += [r['expr'] for r in rules]
        wanted = {name for e in expressions for name in re.findall(r'\btern_\w+', e)}
        self.assertGreater(len(wanted), 12)
        self.assertEqual(wanted - self.given(), set())
        ids = [p['id'] for p in dashboard['panels']]
        self.assertEqual(len(ids), len(set(ids)))

    @unittest.skipUnless(shutil.which('promtool'), 'promtool is not installed')
    def test_promtool(self):
        done = subprocess.run(['promtool', 'check', 'rules', os.path.join(DEPLOY, 'prometheus/tern.rules.yml')],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        done = subprocess.run(['promtool', 'check', 'config', os.path.join(DEPLOY, 'prometheus/scrape.yml')],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
