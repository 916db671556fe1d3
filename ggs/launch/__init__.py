"""Workers started, met, watched and ended, in every container; no HTTP and no command line."""
