"""The Kubernetes operator of Tailrace: clusters and topics from resources, failover, safe rolls."""
