/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices as they are in the field: the GID tables and the limits that differ between cards. Pure.
 */
#include "fake_ibverbs/fake.h"

fake_device fake_device_default(void)
{
	return (fake_device){
		.name = "fake0",
		.ports = 1,
		.state = {IBV_PORT_ACTIVE, IBV_PORT_DOWN},
		.lid = 7,
		.mtu = IBV_MTU_4096,
		.gids = {{"fe80::1", IBV_GID_TYPE_ROCE_V1},
			 {"fe80::1", IBV_GID_TYPE_ROCE_V2},
			 {"::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V1},
			 {"::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2}},
		.max_inline = 101,
		.max_msg = 1u << 30,
		.max_qp_wr = 16384,
		.max_cqe = 1 << 20,
		.max_srq = 100,
		.max_srq_wr = 32768,
		.max_mr = 100000,
		.max_rd_atomic = 16,
	};
}

fake_device fake_card_mlx5(void)
{
	fake_device card = fake_device_default();

	card.name = "mlx5_0";
	card.gids[0] = card.gids[1] = (fake_gid){"fe80::e42:a1ff:fe00:1", IBV_GID_TYPE_ROCE_V1};
	card.gids[2] = card.gids[3] = (fake_gid){"::ffff:192.168.1.5", IBV_GID_TYPE_ROCE_V1};
	card.gids[1].type = card.gids[3].type = IBV_GID_TYPE_ROCE_V2;
	card.max_inline = 400;
	return card;
}

fake_device fake_card_irdma(void)
{
	fake_device card = fake_device_default();

	card.name = "irdma0";
	card.gids[0] = (fake_gid){"fe80::1", IBV_GID_TYPE_ROCE_V2};
	card.gids[1] = (fake_gid){"::ffff:10.1.1.1", IBV_GID_TYPE_ROCE_V2};
	card.gids[2] = card.gids[3] = (fake_gid){0};
	card.max_inline = 101;
	card.max_msg = 2147483647u;
	card.max_qp_wr = 4096;
	return card;
}

fake_device fake_card_bnxt(void)
{
	fake_device card = fake_device_default();

	card.name = "bnxt_re0";
	card.gids[0] = card.gids[1] = (fake_gid){"fe80::2", IBV_GID_TYPE_ROCE_V1};
	card.gids[2] = card.gids[3] = (fake_gid){"2001:db8::5", IBV_GID_TYPE_ROCE_V1};
	card.gids[1].type = card.gids[3].type = IBV_GID_TYPE_ROCE_V2;
	card.max_inline = 96;
	return card;
}

fake_device fake_card_ib(void)
{
	fake_device card = fake_device_default();

	card.name = "mlx5_ib0";
	card.infiniband = true;
	card.lid = 0x12;
	card.gids[0] = (fake_gid){"fe80::9:3a00:1", IBV_GID_TYPE_IB};
	card.gids[1] = card.gids[2] = card.gids[3] = (fake_gid){0};
	return card;
}

fake_device fake_card_tiny(void)
{
	fake_device card = fake_device_default();

	card.name = "tiny0";
	card.max_inline = 0;
	card.max_msg = 8u << 20;
	card.max_qp_wr = 20;
	card.max_cqe = 4000;
	card.max_srq = 1;
	card.max_srq_wr = 100;
	card.max_mr = 8;
	card.max_rd_atomic = 1;
	return card;
}
