"""Operations that are ready: no kernel has to be written, and none is compiled on the user's machine for the simulated GPU."""
