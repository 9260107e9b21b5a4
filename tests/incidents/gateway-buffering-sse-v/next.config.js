// next.config.js (output: 'standalone', Next.js 15)
module.exports = {
  output: 'standalone',
  compress: true,
  async rewrites() {
    return [{ source: '/api/:path*', destination: 'http://backend:5055/api/:path*' }]
  },
}
