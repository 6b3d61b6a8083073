# SPDX-License-Identifier: Apache-2.0
"""With this folder first on PYTHONPATH and TERN_RDMA_OPT=1, torch.distributed uses tern in scripts that ask for gloo.

Nothing is imported unless the script makes a process group. A sitecustomize of the system's runs as it would without
this one.
"""
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
WATCHED = 'torch.distributed.distributed_c10d'
REPLACED = ('gloo', 'mpi', None)  # what moves tensors of the CPU; others are left alone


def redirect(function, place):
    """The function with 'tern' in place of such a backend; place: of the argument, None: by keyword alone."""
    @functools.wraps(function)
    def redirected(*args, **kwargs):
        args = list(args)
        asked = args[place] if place is not None and len(args) > place else kwargs.get('backend')
        if (asked.lower() if isinstance(asked, str) else asked) in REPLACED and (place is not None or asked):
            package = os.path.dirname(os.path.dirname(HERE))
            if package not in sys.path:
                sys.path.append(package)
            import tern.torch.distributed  # noqa: F401  registers the backend
            if place is not None and len(args) > place:
                args[place] = 'tern'
            else:
                kwargs['backend'] = 'tern'
        return function(*args, **kwargs)
    return redirected


class Finder(importlib.abc.MetaPathFinder):
    """Wraps two functions of one module when that is loaded."""

    def find_spec(self, name, path=None, target=None):
        """Other modules are nobody's business here."""
        if name != WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                module.init_process_group = redirect(module.init_process_group, 0)
                module.new_group = redirect(module.new_group, None)
            spec.loader.exec_module = exec_module
        return spec


if os.environ.get('TERN_RDMA_OPT') == '1':
    sys.meta_path.insert(0, Finder())

sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or '.') != HERE]
_other = importlib.machinery.PathFinder.find_spec('sitecustomize', sys.path)
if _other is not None and _other.loader is not None:
    _other.loader.exec_module(importlib.util.module_from_spec(_other))
