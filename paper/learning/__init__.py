"""Networks trained end to end under a kernel readout, at several depths, beside a linear head: the paper's section 4.3."""
