"""Three methods on data that is sorted by label, so that nearly every node has one class only.

D-SGD is biased by the differences between nodes; gradient tracking removes that bias. A step of GT-HSGD takes gradients
at two points, so at equal epochs it makes half as many steps and sends half as much. All three have the same step size,
which is tuned for none of them. Run: python examples/compare_methods.py
"""

import peerdescent as peer

NODES, EPOCHS, SEED = 20, 30, 0
METHODS = ("dsgd[alpha=2]", "gt-dsgd[alpha=2]", "gt-hsgd[alpha=2,beta=0.1]")


def main() -> None:
    """Print where each method ends, at equal epochs."""
    data = peer.datasets.load("digits")  # odd digits are +1, even ones -1
    problem = peer.problems.logistic(data.partition(NODES, by="label", seed=SEED))
    network = peer.Network(peer.topology.ring(NODES))
    print(f"{problem.name}, sorted by label, {EPOCHS} epochs; {network}\n")
    print(f"{'method':<28}{'loss':>10}{'gradient norm':>16}{'consensus':>12}{'sent, MB':>10}")
    for selector in METHODS:
        trace = peer.run(peer.methods.parse(selector), problem, network, epochs=EPOCHS, seed=SEED)
        last = trace.table.iloc[-1]
        print(
            f"{selector:<28}{last['loss']:>10.4f}{last['grad_norm']:>16.4f}{last['consensus']:>12.4f}"
            f"{last['bytes'] / 1e6:>10.2f}"
        )


if __name__ == "__main__":
    main()
