"""References without privacy. Every table that shows one says so."""
