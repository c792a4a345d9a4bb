"""Commands: what clients and administrators ask for. `intake` is their door in, `turns` lets the
long ones go on over many steps; what each does stands in a file by idea."""
