"""Which threads have a row: a part of a warp, a warp, a block, a cluster; and what stays in their registers."""
