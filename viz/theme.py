"""The Gradio side of the look: theme, page stylesheet, and what goes in `<head>`.

app.py passes them to `launch(theme=theme(), css=page_css(), head=head())`. Nothing comes from a CDN.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from viz import palette, served

HERE = Path(__file__).parent


class Keyword(gr.themes.Font):
    """A font name that CSS must see without quotes: Gradio quotes `system-ui`, which makes it the name of no font."""

    def __str__(self) -> str:
        return self.name


SYSTEM_FONTS = (Keyword("system-ui"), Keyword("-apple-system"), "Segoe UI", "Roboto", "Noto Sans", "sans-serif")


def theme() -> gr.themes.Base:
    """gr.themes.Base with the design's surfaces, light and dark; body text 13 px."""
    base = gr.themes.Base(
        font=SYSTEM_FONTS,
        font_mono=(gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700)), "ui-monospace", "Menlo", "Consolas", "monospace"),
        text_size=gr.themes.Size(
            name="pagewalk", xxs="11px", xs="11px", sm="12px", md="13px", lg="15px", xl="20px", xxl="24px"
        ),
        radius_size=gr.themes.Size(name="pagewalk", xxs="2px", xs="3px", sm="4px", md="6px", lg="8px", xl="8px", xxl="8px"),
    )
    light, dark = palette.SURFACES["light"], palette.SURFACES["dark"]
    colours: dict[str, str] = {}
    for variable, name in {
        "body_background_fill": "body", "background_fill_primary": "primary", "background_fill_secondary": "secondary",
        "border_color_primary": "border", "body_text_color": "text", "body_text_color_subdued": "subdued",
        "color_accent_soft": "accent_soft", "link_text_color": "link", "link_text_color_hover": "action_hover",
        "button_primary_background_fill": "action", "button_primary_background_fill_hover": "action_hover",
        "button_secondary_background_fill": "button", "button_secondary_background_fill_hover": "button_hover",
        "button_secondary_border_color": "button_border", "button_secondary_text_color": "text",
        "input_background_fill": "primary", "input_border_color": "input_border", "input_border_color_focus": "accent",
        "block_background_fill": "primary", "block_border_color": "border", "block_label_text_color": "subdued",
        "block_title_text_color": "text", "error_text_color": "error", "error_background_fill": "error_soft",
        "error_border_color": "error_border", "panel_background_fill": "secondary", "code_background_fill": "secondary",
        "slider_color": "accent", "checkbox_background_color_selected": "action", "checkbox_border_color_selected": "action",
    }.items():  # fmt: skip
        colours[variable], colours[f"{variable}_dark"] = light[name], dark[name]
    base = base.set(
        **colours, color_accent=light["accent"], button_primary_text_color="#FFFFFF", button_primary_text_color_dark="#FFFFFF",
        shadow_drop="0 1px 2px rgba(15, 20, 30, .05)", shadow_drop_lg="0 4px 16px rgba(15, 20, 30, .14)",
        block_shadow="none", block_shadow_dark="none", block_border_width="0px", input_shadow="none", input_shadow_dark="none",
        button_primary_shadow="none", button_secondary_shadow="none", input_padding="7px 12px", block_padding="0px",
        layout_gap="8px", form_gap_width="0px", button_large_text_weight="600", button_large_padding="0 14px",
        button_large_radius="6px", button_large_text_size="13px",
    )  # fmt: skip
    # variables that set() knows for light only; Gradio writes any attribute that ends in _dark
    base.color_accent_dark = dark["accent"]
    base.shadow_drop_dark, base.shadow_drop_lg_dark = "0 1px 2px rgba(0, 0, 0, .4)", "0 6px 20px rgba(0, 0, 0, .55)"
    return base


def page_css() -> str:
    """The stylesheet of everything around the Stage: pass it as `css=` to launch()."""
    return (HERE / "page.css").read_text(encoding="utf-8")


def head() -> str:
    """Tags for `head=`: our modules, their stylesheets, the colours; plotly.js of the installed package, for the Stage to run.

    The app must have `viz.served.routes()`, which answers for these addresses.
    """
    tags = [f"<style>{palette.css_variables()}</style>"]
    tags += [f'<link rel="stylesheet" href="{served.url(name)}">' for name in served.STYLES]
    tags += [f'<link rel="modulepreload" href="{served.url(name)}">' for name in served.preloads()]
    tags += [f'<link rel="preload" as="script" href="{served.url(name)}">' for name in served.SCRIPTS]
    tags += [f'<script type="module" src="{served.url(name)}"></script>' for name in served.MODULES]
    return "\n".join(tags) + "\n"


def header_html() -> str:
    """Brand and tag line, for a gr.HTML(elem_id="pw-header") above the tabs."""
    return (HERE / "header.html").read_text(encoding="utf-8")
