//! Boots Debian kernels.
