"""The baselines of Generalized Category Discovery: k-means, GCD, SupRef, and GCD's estimate of K."""
