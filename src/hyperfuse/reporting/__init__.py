"""Reports on fused images: figures, tables and the self-contained HTML page."""
