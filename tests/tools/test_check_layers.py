# SPDX-License-Identifier: Apache-2.0
"""Plants a violation of each rule of tools/check_layers.py and sees it found, and nothing else found."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '../../tools')]
import check_layers  # noqa: E402
from tree import Tree  # noqa: E402


class CheckLayers(unittest.TestCase):
    def setUp(self):
        self.tree = Tree()
        self.addCleanup(self.tree.remove)
        t = self.tree
        t.source('include/tern/mem.h', '#include <stdint.h>\n#include <tern/types.h>\n')
        t.source('src/base/log.h', '')
        t.source('src/base/clock.h', '')
        t.source('src/base/clock.c', '#include "base/clock.h"\n\nvoid f(void)\n{\n\tclock_gettime(0, 0);\n}\n')
        t.source('src/base/options.c', 'void g(void)\n{\n\tgetenv("A");\n}\n')
        t.source('src/mem/os.c', '#include "base/log.h"\n\nvoid h(void)\n{\n\tmmap(0, 0, 0, 0, 0, 0);\n}\n')
        t.source('src/transport/transport.h', '#include "mem/mem.h"\n')
        t.source('src/transport/shm/shm.h', '')
        t.source('src/transport/tcp/tcp.h', '#include "transport/transport.h"\n')
        t.source('src/transport/tcp/lane.c', '#include "tcp.h"\n')
        t.source('src/link/link.c', '#include <string.h>\n\n#include "base/log.h"\n')
        t.source('src/ps/ps.h', '')
        t.source('src/graph/ir.h', '')
        t.source('src/rpc/rpc.h', '')
        t.source('src/tensor/tensor.h', '')
        t.source('src/tensor/setup.c', '#include "rpc/rpc.h"\n')
        t.source('cli/main.c', '#include <tern/mem.h>\n\n#include "args.h"\n')
        t.source('cli/args.h', '')

    def found(self):
        return check_layers.Checker(self.tree.root).run()

    def test_a_clean_tree_passes(self):
        self.assertEqual(self.found(), [])

    def planted(self, path, text, words):
        self.tree.source(path, text)
        found = self.found()
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(path + ':'), found)
        self.assertIn(words, found[0])

    def test_lower_layers_do_not_know_higher_ones(self):
        self.planted('src/base/bad.c', '#include "mem/mem.h"\n', 'base may not use mem')

    def test_mem_does_not_know_transport(self):
        self.planted('src/mem/bad.c', '#include "transport/transport.h"\n', 'mem may not use transport')

    def test_rpc_does_not_know_tensor(self):
        self.planted('src/rpc/bad.c', '#include "tensor/tensor.h"\n', 'rpc may not use tensor')

    def test_ps_and_graph_do_not_know_each_other(self):
        self.planted('src/graph/bad.c', '#include "ps/ps.h"\n', 'graph may not use ps')

    def test_graph_and_ps_the_other_way(self):
        self.planted('src/ps/bad.c', '#include "graph/ir.h"\n', 'ps may not use graph')

    def test_nor_by_public_headers(self):
        self.planted('src/graph/bad.c', '#include <tern/ps_group.h>\n', 'graph may not use ps')

    def test_nor_by_public_headers_the_other_way(self):
        self.planted('src/ps/bad.c', '#include <tern/graph.h>\n', 'ps may not use graph')

    def test_the_tensor_data_path_has_no_rpc(self):
        self.planted('src/tensor/send.c', '#include "rpc/rpc.h"\n', 'data path')

    def test_nor_by_the_public_header(self):
        self.planted('src/tensor/send.c', '#include <tern/rpc.h>\n', 'data path')

    def test_an_include_by_relative_path_is_seen(self):
        self.planted('src/mem/bad.c', '#include "../transport/transport.h"\n', 'mem may not use transport')

    def test_an_unknown_layer(self):
        self.planted('src/extra/bad.c', '', 'is no layer')

    def test_providers_do_not_know_each_other(self):
        self.planted('src/transport/tcp/bad.c', '#include "transport/shm/shm.h"\n', 'may not use the provider shm')

    def test_nor_relatively(self):
        self.planted('src/transport/tcp/bad.c', '#include "../shm/shm.h"\n', 'may not use the provider shm')

    def test_nobody_sees_a_providers_header(self):
        self.planted('src/channel/bad.c', '#include "transport/shm/shm.h"\n', 'private to the provider')

    def test_nor_does_the_registry(self):
        self.planted('src/transport/registry.c', '#include "shm/shm.h"\n', 'by name')

    def test_link_has_no_clock(self):
        self.planted('src/link/bad.c', '#include "base/clock.h"\n', 'sans-IO')

    def test_link_has_no_threads(self):
        self.planted('src/link/bad.c', '#include <pthread.h>\n', 'sans-IO')

    def test_link_has_no_transport(self):
        self.planted('src/link/bad.c', '#include "transport/transport.h"\n', 'link may not use transport')

    def test_link_allocates_only_at_the_start(self):
        self.tree.source('src/link/good.c', 'int tn_link_init(void)\n{\n\tmalloc(1);\n}\n')
        self.planted('src/link/bad.c', 'int tn_link_step(void)\n{\n\tmalloc(1);\n}\n', 'malloc in tn_link_step')

    def test_the_environment_has_one_door(self):
        self.planted('src/mem/bad.c', 'int f(void)\n{\n\treturn getenv("X") != 0;\n}\n', 'base/options.c alone')

    def test_time_has_one_door(self):
        self.planted('src/channel/bad.c', 'int f(void)\n{\n\tclock_gettime(1, 0);\n}\n', 'base/clock.c alone')

    def test_a_member_of_that_name_is_fine(self):
        self.tree.source('src/channel/good.c', 'int f(void)\n{\n\tops->exit(1);\n\tops.time(2);\n}\n')
        self.assertEqual(self.found(), [])

    def test_an_own_function_of_that_name_is_fine(self):
        self.tree.source('src/channel/good.c', 'static int shm_open(int x)\n{\n\treturn x;\n}\n')
        self.assertEqual(self.found(), [])

    def test_comments_and_strings_are_not_code(self):
        self.tree.source('src/channel/good.c', '/* abort() */\nconst char *s = "getenv(x)"; // mmap(\n')
        self.assertEqual(self.found(), [])

    def test_mappings_have_their_doors(self):
        self.planted('src/transport/shm/lane.c', 'int f(void)\n{\n\tmmap(0);\n}\n', 'mappings')

    def test_the_library_does_not_exit(self):
        self.planted('src/rpc/bad.c', 'int f(void)\n{\n\tabort();\n}\n', 'errors are values')

    def test_nor_traps(self):
        self.planted('src/rpc/bad.c', 'int f(void)\n{\n\t__builtin_trap();\n}\n', 'traps')

    def test_openssl_has_one_door(self):
        self.planted('src/channel/bad.c', '#include <openssl/hmac.h>\n', 'base/crypto.c alone')

    def test_verbs_headers_stay_in_verbs(self):
        self.planted('src/mem/bad.c', '#include <infiniband/verbs.h>\n', 'verbs provider')

    def test_public_headers_stand_alone(self):
        self.planted('include/tern/bad.h', '#include "mem/mem.h"\n', 'public header')

    def test_public_headers_have_no_verbs(self):
        self.planted('include/tern/bad.h', '#include <infiniband/verbs.h>\n', 'public header')

    def test_the_command_sees_public_headers_only(self):
        self.planted('cli/bad.c', '#include "base/log.h"\n', 'may include only')

    def test_nor_by_a_path_into_src(self):
        self.planted('cli/bad.c', '#include "../src/base/log.h"\n', 'may include only')

    def test_end_to_end_benches_too(self):
        self.tree.source('bench/micro/good.c', '#include "base/log.h"\n')
        self.planted('bench/bad.c', '#include "base/log.h"\n', 'may include only')

    def test_the_network_of_sim_stands_on_base(self):
        self.tree.source('sim/event.h', '')
        self.tree.source('sim/world.c', '#include "sim/event.h"\n#include "rpc/rpc.h"\n')
        self.planted('sim/net.c', '#include "sim/event.h"\n#include "rpc/rpc.h"\n', 'on base alone')

    def test_sim_has_no_clock(self):
        self.planted('sim/bad.c', 'void f(void)\n{\n\tclock_gettime(0, 0);\n}\n', 'clock.c alone')


if __name__ == '__main__':
    unittest.main()
