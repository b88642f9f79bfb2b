/* Where in the source an output pixel is sampled, and with which weights; see geometry.h. */
#include "prepare/geometry.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT_ONE 32768.0

/* So many samplings before its own a row is asked for: where lines blend two rows, one line. */
#define ROWS_AHEAD 2

uint32_t mcpd_prepare_subsampled(uint32_t n, uint32_t shift)
{
    return (n + (1u << shift) - 1) >> shift;
}

void mcpd_prepare_place(const struct mcpd_prepare_spec *s, struct mcpd_prepare_plan *plan,
                        struct mcpd_prepare_span spans[2])
{
    int whole = s->roi[2] == 0.0 && s->roi[3] == 0.0;
    double low[2] = {whole ? 0.0 : s->roi[0], whole ? 0.0 : s->roi[1]};
    double size[2] = {whole ? s->width : s->roi[2], whole ? s->height : s->roi[3]};
    uint32_t turned = s->rotation == 90 || s->rotation == 270;
    /* The rectangle as it is seen upright, and the output: along x and y. */
    double seen[2] = {size[turned], size[1 - turned]};
    uint32_t out[2] = {s->out_width, s->out_height}, first[2] = {0, 0};
    uint32_t shown[2] = {s->out_width, s->out_height};
    double fit[2] = {out[0] / seen[0], out[1] / seen[1]}, ratio[2], start[2] = {0, 0};
    /* The source's x runs backwards along the output, or its y does. */
    int back[2] = {s->rotation == 180 || s->rotation == 270,
                   s->rotation == 90 || s->rotation == 180};

    for (int i = 0; i < 2; i++) {
        ratio[i] = 1.0 / fit[i];
        if (s->resize == MCPD_LETTERBOX) {
            double pixels = round(seen[i] * fmin(fit[0], fit[1]));

            shown[i] = (uint32_t)fmin(fmax(pixels, 1.0), out[i]);
            first[i] = (out[i] - shown[i]) / 2;
            ratio[i] = seen[i] / shown[i];
            start[i] = -ratio[i] * first[i];
        } else if (s->resize == MCPD_CROP) {
            ratio[i] = 1.0 / fmax(fit[0], fit[1]);
            start[i] = (seen[i] - out[i] * ratio[i]) / 2.0;
        }
    }
    plan->left = first[0];
    plan->top = first[1];
    plan->shown_width = shown[0];
    plan->shown_height = shown[1];
    plan->turned = turned != 0;
    for (uint32_t i = 0; i < 2; i++) { /* the source's x and y */
        uint32_t o = turned ? 1 - i : i;
        struct mcpd_prepare_span *span = &spans[i];

        span->ratio = back[i] ? -ratio[o] : ratio[o];
        span->start = back[i] ? low[i] + size[i] - start[o] : low[i] + start[o];
        span->low = low[i];
        span->high = low[i] + size[i];
        span->first = first[o];
        span->count = shown[o];
        plan->affine[3 * i + o] = span->ratio;
        plan->affine[3 * i + 2] = span->start;
    }
    plan->values = spans[0].count;
    plan->lines = spans[1].count;
}

/* An axis of one plane. Positions are sample indices: 0 is the middle of the first sample. */
struct axis {
    double ratio;
    double start;
    double half; /* where in an output pixel it is sampled */
    double width; /* that an output pixel covers, of area sampling */
    double first; /* samples that count */
    double last;
};

/*
 * `site` is where sample 0 lies, in luma pixels from the middle of pixel 0. Chroma samples count
 * whose pixels the rectangle touches.
 */
static struct axis axis_of(const struct mcpd_prepare_spec *s, const struct mcpd_prepare_span *span,
                           uint32_t count, uint32_t shift, double site)
{
    double scale = 1u << shift;
    struct axis axis = {
        .ratio = span->ratio / scale,
        .start = (span->start - 0.5 - site) / scale,
        .half = 0.5,
        .width = fabs(span->ratio) / scale,
        .first = fmin(fmax(floor(span->low / scale), 0.0), count - 1.0),
        .last = fmin(fmax(ceil(span->high / scale) - 1.0, 0.0), count - 1.0),
    };

    if (s->sampling == MCPD_CORNER) { /* the corner that comes first along the output */
        axis.half = 0.0;
        axis.start += (span->ratio < 0 ? -0.5 : 0.5) / scale;
    }
    if (axis.last < axis.first)
        axis.last = axis.first;
    return axis;
}

/* The sample at or before output pixel o, such that there is one after it if there can be. */
static uint32_t linear_at(const struct axis *axis, uint32_t o, double *weight)
{
    double at = axis->ratio * (o + axis->half) + axis->start, index;

    at = fmin(fmax(at, axis->first), axis->last);
    index = floor(at);
    if (index > axis->first && index >= axis->last)
        index = axis->last - 1;
    *weight = at - index;
    return (uint32_t)index;
}

/* Most samples that an output pixel is the mean of. */
static uint32_t area_taps(const struct axis *axis)
{
    double most = axis->width > 1.0 ? ceil(axis->width) + 1.0 : 2.0;

    return (uint32_t)fmin(most, axis->last - axis->first + 1.0);
}

/* Shares of `ntaps` samples in output pixel o; returns the first of them. */
static uint32_t area_at(const struct axis *axis, uint32_t o, uint32_t ntaps, float *shares)
{
    double middle = axis->ratio * (o + 0.5) + axis->start;
    double low = middle - axis->width / 2 + 0.5, high = low + axis->width, weight;
    uint32_t index, first;

    for (uint32_t t = 0; t < ntaps; t++)
        shares[t] = 0.0f;
    if (axis->width <= 1.0) {
        first = linear_at(axis, o, &weight);
        index = first > axis->last + 1.0 - ntaps ? (uint32_t)(axis->last + 1.0 - ntaps) : first;
        shares[first - index] = (float)(1.0 - weight);
        if (first - index + 1 < ntaps)
            shares[first - index + 1] = (float)weight;
        return index;
    }
    /* Sample k covers k..k + 1; what lies beyond the first and the last counts as theirs. */
    first = (uint32_t)fmin(fmax(floor(low), axis->first), axis->last + 1.0 - ntaps);
    for (uint32_t t = 0; t < ntaps; t++) {
        double from = first + t, end = from + 1.0;

        from = from <= axis->first ? low : fmax(from, low);
        end = end > axis->last ? high : fmin(end, high);
        shares[t] = (float)(fmax(end - from, 0.0) / axis->width);
        /* A crumb that rounding left would have a row read for nothing. */
        if (shares[t] < 1e-6f)
            shares[t] = 0.0f;
    }
    return first;
}

static int fill_shares(const struct axis *axis, const struct mcpd_prepare_format *format,
                       const struct mcpd_prepare_span *span, struct mcpd_prepare_columns *columns,
                       uint32_t which, size_t padded)
{
    uint32_t n = span->count, ntaps = area_taps(axis);
    float *shares = calloc(ntaps, sizeof(*shares));

    columns->ntaps = ntaps;
    columns->share = calloc(ntaps * padded, sizeof(*columns->share));
    if (!columns->share || !shares) {
        free(shares);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = area_at(axis, i + span->first, ntaps, shares);

        for (uint32_t t = 0; t < ntaps; t++)
            columns->share[t * padded + i] = shares[t];
        columns->left[i] = (int32_t)(index * format->step[which]);
        columns->first = i == 0 || index < columns->first ? index : columns->first;
        columns->last = index + ntaps - 1 > columns->last ? index + ntaps - 1 : columns->last;
    }
    free(shares);
    return 0;
}

int mcpd_prepare_fill_columns(const struct mcpd_prepare_spec *s,
                              const struct mcpd_prepare_format *format,
                              const struct mcpd_prepare_span *span, struct mcpd_prepare_plan *plan,
                              uint32_t which)
{
    struct mcpd_prepare_columns *columns = &plan->columns[which];
    uint32_t shift = which ? format->chroma_shift_x : 0, n = span->count;
    uint32_t count = mcpd_prepare_subsampled(s->width, shift);
    size_t padded = MCPD_PREPARE_PADDED(n);
    struct axis axis = axis_of(s, span, count, shift, 0.0);
    int several = axis.last > axis.first;

    columns->left = malloc(padded * sizeof(*columns->left));
    columns->weight = calloc(2 * padded, sizeof(*columns->weight));
    if (!columns->left || !columns->weight)
        return -ENOMEM;
    columns->step = several ? format->step[which] : 0;
    columns->last = 0;
    if (plan->area) {
        int failed = fill_shares(&axis, format, span, columns, which, padded);

        if (failed)
            return failed;
    }
    for (uint32_t i = 0; !plan->area && i < n; i++) {
        double weight;
        uint32_t index = linear_at(&axis, i + span->first, &weight);
        int32_t right = (int32_t)round(weight * WEIGHT_ONE);

        columns->left[i] = (int32_t)(index * format->step[which]);
        columns->weight[2 * i] = (int16_t)(right - (int32_t)WEIGHT_ONE);
        columns->weight[2 * i + 1] = (int16_t)-right;
        columns->first = i == 0 || index < columns->first ? index : columns->first;
        columns->last = index + several > columns->last ? index + several : columns->last;
    }
    for (size_t i = n; i < padded; i++) {
        columns->left[i] = columns->left[n - 1];
        memcpy(columns->weight + 2 * i, columns->weight + 2 * n - 2, 2 * sizeof(int16_t));
    }
    return 0;
}

/* For each row that is sampled, the one sampled ROWS_AHEAD later. A line keeps what the last had. */
static void fill_ahead(struct mcpd_prepare_rows *rows, uint32_t n)
{
    size_t waiting[ROWS_AHEAD], count = 0; /* entries of the last rows */

    for (size_t i = 0; i < 2 * (size_t)n; i++) {
        size_t y = i / 2;
        uint32_t row = i % 2 ? rows->lower[y] : rows->upper[y];

        rows->ahead[i] = row;
        if ((i % 2 && row == rows->upper[y]) ||
            (y > 0 && (row == rows->upper[y - 1] || row == rows->lower[y - 1])))
            continue;
        if (count >= ROWS_AHEAD)
            rows->ahead[waiting[count % ROWS_AHEAD]] = row;
        waiting[count++ % ROWS_AHEAD] = i;
    }
}

int mcpd_prepare_fill_rows(const struct mcpd_prepare_spec *s,
                           const struct mcpd_prepare_format *format,
                           const struct mcpd_prepare_span *span, struct mcpd_prepare_plan *plan,
                           uint32_t which)
{
    struct mcpd_prepare_rows *rows = &plan->rows[which];
    uint32_t shift = which ? format->chroma_shift_y : 0, n = span->count;
    uint32_t count = mcpd_prepare_subsampled(s->height, shift);
    struct axis axis = axis_of(s, span, count, shift, shift ? 0.5 : 0.0);
    int several = axis.last > axis.first;

    rows->upper = malloc(n * sizeof(*rows->upper));
    rows->lower = malloc(n * sizeof(*rows->lower));
    rows->weight = calloc(n, sizeof(*rows->weight));
    rows->ahead = malloc(2 * (size_t)n * sizeof(*rows->ahead));
    rows->ntaps = plan->area ? area_taps(&axis) : 0;
    if (rows->ntaps)
        rows->share = malloc((size_t)n * rows->ntaps * sizeof(*rows->share));
    if (!rows->upper || !rows->lower || !rows->weight || !rows->ahead ||
        (rows->ntaps && !rows->share))
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        double weight;

        if (plan->area) {
            rows->upper[i] = area_at(&axis, i + span->first, rows->ntaps,
                                     rows->share + (size_t)i * rows->ntaps);
            rows->lower[i] = rows->upper[i] + rows->ntaps - 1;
            continue;
        }
        rows->upper[i] = linear_at(&axis, i + span->first, &weight);
        if (weight >= 1.0) { /* the last row: it alone */
            rows->upper[i]++;
            weight = 0.0;
        }
        rows->weight[i] = (int16_t)fmin(round(weight * WEIGHT_ONE), WEIGHT_ONE - 1.0);
        rows->lower[i] = rows->upper[i] + (several && rows->weight[i] != 0);
    }
    if (!plan->area)
        fill_ahead(rows, n);
    return 0;
}
