/* The map as a picture: a bar a tier, a colour a model, a line between groups; pale where nobody has a lease. What
 * lies there is said where the pointer is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/map.h"
#include "client/ctl/member.h"
#include "client/ctl/units.h"

#define WIDTH 1000
#define LEFT 70
#define BAR (WIDTH - LEFT - 160)
#define BAR_HEIGHT 36
#define ROW 46
#define LINE 20
#define THIN 0.4 /* pixels under which pieces of one model are drawn as one */

/* XML has no way to write most control characters. */
static void escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, out);
        }
    }
}

/* Colours far apart for owners next to each other; grey for what is of no model. */
static void colour(FILE *out, const struct map *map, unsigned owner)
{
    if (*map->owners[owner].name)
        fprintf(out, "hsl(%u,62%%,%u%%)", (owner * 137 + 210) % 360, 42 + owner % 3 * 8);
    else
        fputs("#888", out);
}

static void piece(FILE *out, const struct map *map, const struct piece *piece, double x, double y, double width)
{
    char bytes[UNITS_TEXT];

    fprintf(out, "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" fill=\"", x, y, width, BAR_HEIGHT);
    colour(out, map, piece->owner);
    fprintf(out, "\" fill-opacity=\"%s\"%s><title>", piece->leased ? "1" : "0.45",
            width > 3 ? " stroke=\"#fff\" stroke-width=\"0.5\"" : "");
    escaped(out, *piece->model ? piece->model : "of no model");
    if (*piece->group) {
        fputc(' ', out);
        escaped(out, piece->group);
    }
    fprintf(out, ": %u buffer%s, %s%s</title></rect>\n", piece->buffers, piece->buffers == 1 ? "" : "s",
            units_bytes(piece->bytes, bytes),
            piece->locked   ? ", locked"
            : piece->leased ? ", leased"
                            : "");
}

static void tier(FILE *out, const struct map *map, const cJSON *device, const cJSON *row, double y)
{
    double capacity = number(row, "capacity"), used = number(row, "used"),
           whole = capacity > used ? capacity : used, x = LEFT;
    char has[UNITS_TEXT], of[UNITS_TEXT];
    unsigned n;
    const struct piece *pieces = map_tier(map, text_of(device, "uuid"), text_of(row, "tier"), &n);
    double scale = whole > 0 ? BAR / whole : 0;

    fprintf(out, "<text x=\"10\" y=\"%.0f\">%s</text>\n", y + 23, text_of(row, "tier"));
    fprintf(out, "<rect x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\" fill=\"#eee\"/>\n", LEFT, y, BAR,
            BAR_HEIGHT);
    for (unsigned i = 0; i < n; i++) {
        struct piece sum = pieces[i];
        while (sum.bytes * scale < THIN && i + 1 < n && pieces[i + 1].owner == sum.owner) {
            sum.bytes += pieces[++i].bytes;
            sum.buffers += pieces[i].buffers;
            sum.leased |= pieces[i].leased;
            sum.locked |= pieces[i].locked;
            sum.group = "";
        }
        piece(out, map, &sum, x, y, sum.bytes * scale);
        x += sum.bytes * scale;
    }
    if (used * scale > x - LEFT)
        fprintf(out,
                "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" fill=\"#bbb\"><title>used, by nothing "
                "listed here</title></rect>\n",
                x, y, used * scale - (x - LEFT), BAR_HEIGHT);
    fprintf(out, "<text x=\"%d\" y=\"%.0f\">%s of %s</text>\n", LEFT + BAR + 8, y + 23, units_bytes(used, has),
            units_bytes(capacity, of));
}

static void legend(FILE *out, const struct map *map, double y)
{
    char bytes[UNITS_TEXT];

    for (unsigned i = 0; i < map->n_owners; i++) {
        const struct map_owner *owner = &map->owners[i];
        fprintf(out, "<rect x=\"%d\" y=\"%.0f\" width=\"12\" height=\"12\" fill=\"", LEFT, y);
        colour(out, map, i);
        fprintf(out, "\" fill-opacity=\"%s\"/><text x=\"%d\" y=\"%.0f\">", owner->leased ? "1" : "0.45", LEFT + 20,
                y + 11);
        escaped(out, *owner->name ? owner->name : "buffers of no model");
        fprintf(out, ", %s%s</text>\n", units_bytes(owner->bytes, bytes), owner->leased ? ", leased" : "");
        y += LINE;
    }
}

void map_svg(const struct map *map, FILE *out)
{
    const cJSON *device, *row, *tiers;
    double height = 20 + map->n_owners * LINE, y = 10;

    cJSON_ArrayForEach(device, map->devices) height +=
        LINE + 10 + ROW * cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(device, "tiers"));
    fprintf(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" "
        "height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
        "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
        WIDTH, height, WIDTH, height);
    cJSON_ArrayForEach(device, map->devices)
    {
        fprintf(out, "<text x=\"10\" y=\"%.0f\" font-weight=\"bold\">device %.0f, ", y + 14,
                number(device, "index"));
        escaped(out, text_of(device, "name"));
        fputs("</text>\n", out);
        y += LINE + 4;
        tiers = cJSON_GetObjectItemCaseSensitive(device, "tiers");
        cJSON_ArrayForEach(row, tiers)
        {
            tier(out, map, device, row, y);
            y += ROW;
        }
        y += 6;
    }
    legend(out, map, y);
    fputs("</svg>\n", out);
}
