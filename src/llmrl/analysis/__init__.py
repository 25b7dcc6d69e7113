"""Statistics of folders of runs. This package only reads files; it never imports torch."""
