"""Palette: the colours that the plots share."""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#B8860B", "#3FA0DB", "#882255", "#555555")
"""Colours of relations and of lines: those of Okabe and Ito, which are safe for colour-blind
readers, without the ones too pale for a white background."""

GREEN, BLUE, PURPLE, ORANGE, NEUTRAL = "#0b6e4f", "#1f77b4", "#9467bd", "#d95f02", "#7f7f7f"
"""Colours of curves with a fixed meaning: green for oneshot, neutral for random baselines."""

INK, SOFT, GREY, FAINT = "#1b1f24", "#57606a", "#9aa4af", "#d5dae0"
"""Colours of text and thin lines, from dark to light."""

QUERY, ANSWER = "#1b3a5c", "#8f2d00"
"""Colours of the query entity and of the answer."""
