"""A time-varying network, compared with two static ones.

In the one-peer exponential graphs a node sends to a single other node, another one in each step of the period. If n is
a power of two, one period averages exactly. The comparison is at equal steps, and so at equal gradients.
Run: python examples/time_varying.py
"""

import peerdescent as peer

NODES, STEPS = 16, 2000


def main() -> None:
    """Print the consensus error and the bytes sent for each network."""
    data = peer.datasets.load("digits")
    problem = peer.problems.logistic(data.partition(NODES, by="label"))
    method = peer.methods.gt_hsgd(alpha=2.0, beta=0.1)
    graphs = {
        "ring": peer.topology.ring(NODES),
        "exponential": peer.topology.exponential(NODES),
        "one-peer exponential": peer.topology.one_peer_exponential(NODES),
    }
    print(f"{'network':<22}{'period':>7}{'lam':>8}{'loss':>9}{'consensus':>12}{'sent, MB':>10}")
    for name, graph in graphs.items():
        network = peer.Network(graph)
        last = peer.run(method, problem, network, steps=STEPS, record=10).table.iloc[-1]
        print(
            f"{name:<22}{network.period:>7}{network.lam:>8.3f}{last['loss']:>9.4f}{last['consensus']:>12.2e}"
            f"{last['bytes'] / 1e6:>10.2f}"
        )


if __name__ == "__main__":
    main()
