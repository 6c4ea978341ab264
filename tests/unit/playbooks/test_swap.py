def test_x(host, run_module):
    a = run_module("gpufix_swap", check=True); print(a)
    b = run_module("gpufix_swap"); print(b); print(host.calls())
    c = run_module("gpufix_swap"); print(c)
    print(run_module("gpufix_kubelet_unit", state="held"))
    print(run_module("gpufix_read_node"))
    assert 0
def test_y(host, run_playbook):
    for a in (("--check","--diff"),("--diff",)):
        d = run_playbook("disable-swap.yml", *a); print(d.stdout, d.stderr)
    assert 0
